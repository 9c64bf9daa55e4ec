"""`prefixcache tree`: the radix tree, drawn."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from rich.text import Text
from rich.tree import Tree as Drawing

from prefixcache_client.cache_answers import Tree, TreeNode
from prefixcache_client.command_line import arguments as common
from prefixcache_client.command_line.output import count, printable, write_result

if TYPE_CHECKING:
    from prefixcache_client.command_line.arguments import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """`tree`."""
    parser = subparsers.add_parser("tree", help="draw the radix tree of a worker")
    parser.add_argument(
        "--max-depth",
        type=common.non_negative_int,
        default=0,
        metavar="N",
        help="draw the N levels below the root (default: 0, which draws all)",
    )
    common.add_connection(parser)
    common.add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Draw the tree."""
    with common.connect(arguments) as client:
        tree = client.tree(max_depth=arguments.max_depth)
    write_result(tree, arguments.json, partial(draw_tree, max_depth=arguments.max_depth))
    return 0


def draw_tree(tree: Tree, *, max_depth: int = 0) -> Drawing:
    """The tree with one line per node. `max_depth` is where it was cut off; 0: nowhere. O(nodes)."""
    nodes = tree.nodes
    now = max((node.last_used for node in nodes), default=0)
    num_blocks = sum(node.num_blocks for node in nodes)
    title = f"root: {count(len(nodes), 'node')}, {count(num_blocks, 'block')}"
    if max_depth:
        title += f"; nodes below level {max_depth} are left out"
    if tree.num_left_out:
        title += f"; {count(tree.num_left_out, 'node')} more are left out, see --max-depth"
    root = Drawing(Text(title, style="bold"))
    branches = {0: root}
    for node in nodes:
        branches[node.id] = branches[node.parent_id].add(_label(node, now))
    return root


def _label(node: TreeNode, now: int) -> Text:
    label = Text(no_wrap=True, overflow="ellipsis")
    label.append("public" if node.public else node.tenant, style="green" if node.public else "cyan")
    label.append(f"  {count(node.num_tokens, 'token')} in {count(node.num_blocks, 'block')}")
    if node.num_readers:
        label.append(f", {count(node.num_readers, 'reader')}", style="bold")
    if node.last_used:  # else we may not know
        uses = count(now - node.last_used, "use")  # the clock ticks once per use
        label.append(f", {uses} ago", style="dim")
    if node.preview:
        label.append(f"  {printable(' '.join(node.preview.split()))}", style="italic")
    return label

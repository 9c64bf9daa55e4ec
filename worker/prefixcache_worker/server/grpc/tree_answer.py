"""The tree as a message."""

from __future__ import annotations

from prefixcache import NodeView, TreeView, unpack_tokens
from prefixcache.token_chunks import TOKEN_BYTES
from prefixcache.v1 import cache_pb2
from prefixcache_worker.model.tokenizer import Tokenizer

MAX_TREE_NODES = 10_000
"""In one answer, which is then below 8 MB however long names and previews are."""
PREVIEW_TOKENS = 24
MAX_PREVIEW_LENGTH = 128


def tree_to_proto(view: TreeView, *, tenant: str, tokenizer: Tokenizer) -> cache_pb2.DumpTreeResponse:
    """The same nodes in the same order. Text only of public nodes and those of `tenant`. O(nodes)."""
    response = cache_pb2.DumpTreeResponse(num_left_out=view.num_left_out)
    for node in view.nodes:
        response.nodes.add(
            id=node.id,
            parent_id=node.parent_id,
            public=node.public,
            tenant=node.tenant,
            num_tokens=node.num_tokens,
            num_blocks=node.num_blocks,
            num_live_blocks=node.num_live_blocks,
            num_readers=node.num_readers,
            preview=preview(node, tenant=tenant, tokenizer=tokenizer),
            last_used=node.last_used,
        )
    return response


def preview(node: NodeView, *, tenant: str, tokenizer: Tokenizer) -> str:
    """The beginning of a node's text, if `tenant` may read it."""
    if not node.public and node.tenant != tenant:
        return ""
    token_ids = list(unpack_tokens(node.tokens[: PREVIEW_TOKENS * TOKEN_BYTES]))
    return tokenizer.decode(token_ids, skip_special_tokens=False)[:MAX_PREVIEW_LENGTH]

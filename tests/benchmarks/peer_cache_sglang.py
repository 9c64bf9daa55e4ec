"""SGLang's radix caches as a peer of cache_ops.py, run by the Python of SGLang's own environment.

Usage: cache_ops.py --sglang PYTHON

PYTHON needs torch, numpy, msgspec, pydantic and pyzmq, and sglang without its other dependencies
(`pip install --no-deps sglang`; tried: 0.5.23 with the CPU build of torch 2.13). Three forms are measured,
all with pages of 16 tokens and LRU: the Rust core called directly, which is more than SGLang itself gets;
the Rust core through the adapter that its scheduler calls, the default there; and `radix_cache.py`.
None has an allocator here, so what that would cost is left out.

Answers each line of stdin, `NUM_SAMPLES SECONDS`, with a line of JSON: form -> operation -> nanoseconds of
every call.
"""

from __future__ import annotations

import gc
import importlib
import importlib.abc
import importlib.metadata
import importlib.util
import itertools
import json
import sys
import time
from array import array
from collections.abc import Callable
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Protocol

import torch

PAGE_TOKENS = 16
CHAIN_TOKENS = 1024  # 64 pages
FIRST_OWN_TOKENS = itertools.count(100_000)  # every chain begins with a token of its own
NUM_LEAVES = {"evict_1k": 1_000, "evict_10k": 10_000, "evict_1m": 1_000_000}
ONE_BY_ONE = ("publish_64",)
"""Operations whose calls each need what was made ready last."""

MEASURED = {
    "sglang.srt.disaggregation.kv_events",
    "sglang.srt.mem_cache.base_prefix_cache",
    "sglang.srt.mem_cache.cache_init_params",
    "sglang.srt.mem_cache.events",
    "sglang.srt.mem_cache.evict_policy",
    "sglang.srt.mem_cache.radix_cache",
    "sglang.srt.mem_cache.rust_tree_core.adapter",
    "sglang.srt.mem_cache.rust_tree_core.mem_cache",
    "sglang.srt.mem_cache.unified_cache.cache_action",
    "sglang.srt.mem_cache.unified_cache.component_type",
    "sglang.srt.mem_cache.unified_cache.unified_tree_core_interface",
    "sglang.srt.mem_cache.utils",
}
"""SGLang's modules that take part; stand-ins are imported in place of all others."""


class StandIn(ModuleType):
    """Has every name, as an empty class: enough to import and to annotate, and loud when it is called."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Surroundings(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the caches without the models, kernels and devices around them."""

    def __init__(self) -> None:
        package = importlib.util.find_spec("sglang")
        if package is None or package.submodule_search_locations is None:
            sys.exit("this Python has no sglang; install it with `pip install --no-deps sglang`")
        self._folder = package.submodule_search_locations[0]

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        package, _, rest = name.partition(".")
        if package != "sglang" or name in MEASURED:
            return None
        spec = ModuleSpec(name, self)
        spec.submodule_search_locations = [f"{self._folder}/{rest.replace('.', '/')}"]
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: a stand-in has no code."""


def require_int64(values: array[int], name: str) -> None:
    """SGLang's check of a key, which its adapter makes in every call."""
    assert isinstance(values, array), name
    assert values.typecode == "q", name


sys.meta_path.insert(0, Surroundings())
BINDINGS: Any = importlib.import_module("sglang.srt.mem_cache.rust_tree_core.mem_cache")
for stand_in, name, value in (
    ("sglang.srt.mem_cache.rust_tree_core.extension", "bindings", BINDINGS),
    ("sglang.srt.utils", "assert_int64_array", require_int64),
):
    setattr(importlib.import_module(stand_in), name, value)

from sglang.srt.mem_cache.base_prefix_cache import (  # noqa: E402
    EvictParams,
    InsertParams,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey  # noqa: E402
from sglang.srt.mem_cache.rust_tree_core.adapter import RustUnifiedTreeCore  # noqa: E402
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType  # noqa: E402

FULL = ComponentType.FULL

Prepare = Callable[[], Callable[[], object]]
"""Makes ready what one call needs, and returns the call to time."""


class Tree(Protocol):
    """What is asked of every form."""

    def insert(self, tokens: array[int], slots: torch.Tensor) -> None: ...

    def match(self, tokens: array[int]) -> torch.Tensor:
        """The slots of the longest cached prefix."""

    def hold(self, tokens: array[int]) -> None:
        """Match, and lock what was found for a moment."""

    def evict_page(self) -> None: ...


class PythonTree:
    """`radix_cache.py`."""

    device = "cpu"

    def __init__(self) -> None:
        self._cache = RadixCache.create_simulated(page_size=PAGE_TOKENS, mock_allocator=self)

    def free_segment(self, slots: torch.Tensor, start_pos: int) -> None:
        """Where the cache's allocator would take the slots back."""

    def insert(self, tokens: array[int], slots: torch.Tensor) -> None:
        self._cache.insert(InsertParams(key=RadixKey(tokens), value=slots))

    def match(self, tokens: array[int]) -> torch.Tensor:
        found = self._cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens)))
        return self._cache.path_device_indices(found.last_device_node)

    def hold(self, tokens: array[int]) -> None:
        node = self._cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens))).last_device_node
        self._cache.path_device_indices(node)
        self._cache.inc_lock_ref(node)
        self._cache.dec_lock_ref(node)

    def evict_page(self) -> None:
        self._cache.evict(EvictParams(num_tokens=PAGE_TOKENS))


class RustTree:
    """The Rust core through its adapter, in the steps of `unified_radix_cache.py`."""

    def __init__(self) -> None:
        self._core = RustUnifiedTreeCore(
            CacheInitParams(
                disable=False,
                req_to_token_pool=None,
                token_to_kv_pool_allocator=None,
                page_size=PAGE_TOKENS,
                tree_components=(FULL,),
            )
        )
        self._root = self._core.root_node_handle()

    def insert(self, tokens: array[int], slots: torch.Tensor) -> None:
        step = self._core.begin_insert(InsertParams(key=RadixKey(tokens), value=slots))
        while step.result is None:
            step = self._core.resume_insert()
        self._core.end_insert()

    def match(self, tokens: array[int]) -> torch.Tensor:
        found = self._core.match_prefix(MatchPrefixParams(key=RadixKey(tokens)))
        return self._core.collect_full_device_indices(found.last_device_node, self._root)

    def hold(self, tokens: array[int]) -> None:
        node = self._core.match_prefix(MatchPrefixParams(key=RadixKey(tokens))).last_device_node
        self._core.collect_full_device_indices(node, self._root)
        receipt = self._core.inc_lock_ref(node).to_dec_params()
        self._core.dec_lock_ref(node, receipt)

    def evict_page(self) -> None:
        self._core.evict_device_start(FULL, PAGE_TOKENS)
        leaf = self._core.evict_device_next_node(FULL, {FULL: 0})
        evicted = self._core.evict_device_leaf(leaf.node_id, False)
        evicted.device_frees.pop(FULL)
        self._core.evict_device_end(FULL)


class BareRustTree:
    """The same steps on the Rust core itself."""

    def __init__(self) -> None:
        params = BINDINGS.TreeCoreInitParamsBinding(
            eviction_policy="lru", page_size=PAGE_TOKENS, device="cpu"
        )
        self._core = BINDINGS.RustUnifiedTreeCoreBinding(params, [0])
        self._root = self._core.root_node_handle()

    def insert(self, tokens: array[int], slots: torch.Tensor) -> None:
        self._core.insert(BINDINGS.InsertParamsBinding(key=tokens, value=slots))

    def match(self, tokens: array[int]) -> torch.Tensor:
        found = self._core.match_prefix(BINDINGS.MatchParamsBinding(key=tokens))
        return self._core.collect_full_device_indices(found.last_device_node_id, self._root)

    def hold(self, tokens: array[int]) -> None:
        node = self._core.match_prefix(BINDINGS.MatchParamsBinding(key=tokens)).last_device_node_id
        self._core.collect_full_device_indices(node, self._root)
        lock = self._core.inc_lock_ref(node, [])
        receipt = BINDINGS.DecLockRefParamsBinding(
            node_id=lock.node_id,
            skipped_lock_components=lock.skipped_lock_components,
            component_lock_uuids=lock.component_lock_uuids,
            component_host_lock_uuids=lock.component_host_lock_uuids,
        )
        self._core.dec_lock_ref(node, receipt)

    def evict_page(self) -> None:
        self._core.evict_device_start(0, PAGE_TOKENS)
        leaf = self._core.evict_device_next_node(0, {0: 0})
        self._core.evict_device_leaf(leaf.node_id)
        self._core.evict_device_end(0)


def own_tokens(num_tokens: int) -> array[int]:
    return array("q", [next(FIRST_OWN_TOKENS), *range(num_tokens - 1)])


def evicting(tree: Tree, num_leaves: int) -> Prepare:
    """One page, with so many leaves to choose from."""
    slots = torch.arange(PAGE_TOKENS)
    for _ in range(num_leaves - 10):
        tree.insert(own_tokens(PAGE_TOKENS), slots)

    def prepare() -> Callable[[], object]:
        tree.insert(own_tokens(PAGE_TOKENS), slots)
        return tree.evict_page

    return prepare


def operations(new_tree: Callable[[], Tree]) -> dict[str, Prepare]:
    """Every operation of one form, by the names that cache_ops.py knows."""
    tree = new_tree()
    prompt, long_prompt = array("q", range(2_048)), array("q", range(40_000, 72_768))
    for tokens in (prompt, long_prompt):
        tree.insert(tokens, torch.arange(len(tokens)))
        assert len(tree.match(tokens)) == len(tokens)
    published, slots = new_tree(), torch.arange(CHAIN_TOKENS)
    return {
        "match_2k": lambda: partial(tree.match, prompt),
        "match_32k": lambda: partial(tree.match, long_prompt),
        "hold_2k": lambda: partial(tree.hold, prompt),
        "publish_64": lambda: partial(published.insert, own_tokens(CHAIN_TOKENS), slots),
        **{name: evicting(new_tree(), num_leaves) for name, num_leaves in NUM_LEAVES.items()},
    }


def sample(name: str, prepare: Prepare, num_samples: int, seconds: float) -> list[float]:
    """Nanoseconds of a call, each the mean of some in a row, of as many as fit into the time."""
    num_in_a_row = 1 if name in ONE_BY_ONE else 10
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < num_samples and (not samples or time.perf_counter() < end):
        calls = [prepare() for _ in range(num_in_a_row)]
        start = time.perf_counter_ns()
        for call in calls:
            call()
        samples.append((time.perf_counter_ns() - start) / num_in_a_row)
    return samples


def main() -> None:
    torch.set_num_threads(1)
    name = f"SGLang {importlib.metadata.version('sglang')}"
    bare, rust = operations(BareRustTree), operations(RustTree)
    tokens = array("q", range(8_192))
    bare["keys_8k"] = lambda: partial(BINDINGS.get_hash_str, tokens, None, PAGE_TOKENS)
    forms = {f"{name} Rust, bare": bare, f"{name} Rust": rust, f"{name} Python": operations(PythonTree)}
    gc.collect()
    gc.freeze()
    gc.disable()
    for line in sys.stdin:
        num_samples, seconds = line.split()
        samples = {
            form: {
                name: sample(name, prepare, int(num_samples), float(seconds))
                for name, prepare in found.items()
            }
            for form, found in forms.items()
        }
        print(json.dumps(samples), flush=True)


if __name__ == "__main__":
    main()

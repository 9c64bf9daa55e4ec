"""Chained keys: the published vectors, and that nothing of a process is in them."""

import json
import os
import re
import subprocess
import sys
from hashlib import blake2b
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from support.token_streams import stream

from prefixcache import InvalidArgumentError, Namespace, pack_tokens
from prefixcache.block_keys import KEY_BYTES, BlockKey, BlockKeys, unpack_keys

PAGE = Path(__file__).parents[2] / "docs" / "block_keys.md"
VECTORS: list[dict[str, Any]] = json.loads(re.search(r"```json\n(.*)```", PAGE.read_text(), re.DOTALL)[1])
NAMESPACE = Namespace("model", "tenant")
KEYS = BlockKeys(chunk_bytes=64)


def keys_of(token_ids: object, namespace: Namespace = NAMESPACE, keys: BlockKeys = KEYS) -> list[BlockKey]:
    """The keys of a private prompt."""
    return keys.chain(keys.enter(keys.root(namespace.domain), namespace.scope), pack_tokens(token_ids))


def keyed_blake2b(message: bytes, secret: bytes, person: str) -> bytes:
    """RFC 7693, as docs/block_keys.md uses it, by hand."""
    key = blake2b(secret).digest() if len(secret) > 64 else secret
    state = blake2b(key=key, digest_size=16, person=person.encode().ljust(16, b"\0"))
    state.update(message)
    return state.digest()


def reference_keys(vector: dict[str, Any]) -> list[list[str]]:
    """The table of docs/block_keys.md, token by token."""
    secret = bytes.fromhex(vector["secret"])
    parent = keyed_blake2b(bytes.fromhex(vector["domain"]), secret, "block key root")
    keys: list[list[str]] = []
    for run in vector["runs"]:
        if run["scope"]:
            parent = keyed_blake2b(parent + bytes.fromhex(run["scope"]), secret, "block key scope")
        keys.append([])
        chunk = xxhash.xxh3_128(parent)
        for count, token_id in enumerate(run["token_ids"], start=1):
            chunk.update(int(token_id).to_bytes(4, "little"))
            if count % vector["block_size"] == 0:
                parent = chunk.intdigest().to_bytes(16, "big")
                keys[-1].append(parent.hex())
                chunk = xxhash.xxh3_128(parent)
    return keys


def our_keys(vector: dict[str, Any]) -> list[list[str]]:
    block_keys = BlockKeys(chunk_bytes=4 * vector["block_size"], secret=bytes.fromhex(vector["secret"]))
    parent = block_keys.root(bytes.fromhex(vector["domain"]))
    keys = []
    for run in vector["runs"]:
        parent = block_keys.enter(parent, bytes.fromhex(run["scope"]))
        keys.append(block_keys.chain(parent, pack_tokens(run["token_ids"])))
        parent = keys[-1][-1]
    return [[key.hex() for key in run] for run in keys]


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["what"] for vector in VECTORS])
def test_the_published_vectors(vector: dict[str, Any]) -> None:
    published = [run["keys"] for run in vector["runs"]]
    assert our_keys(vector) == published
    assert reference_keys(vector) == published


def test_the_published_vectors_are_of_all_kinds() -> None:
    assert {vector["block_size"] for vector in VECTORS} == {1, 16}
    assert {len(vector["secret"]) // 2 for vector in VECTORS} == {0, 6, 64, 65}
    assert {len(vector["runs"]) for vector in VECTORS} == {1, 2}
    assert all(
        len(key) == 2 * KEY_BYTES for vector in VECTORS for run in vector["runs"] for key in run["keys"]
    )


@given(
    st.lists(st.integers(0, 2**32 - 1), max_size=40),
    st.sampled_from([1, 2, 16]),
    st.binary(max_size=70),
    st.binary(max_size=20),
    st.integers(0, 40),
)
def test_keys_are_those_of_the_reference(
    token_ids: list[int], block_size: int, secret: bytes, scope: bytes, cut: int
) -> None:
    """Whole public chunks up to a cut, then a private scope's."""
    num_public = min(cut, len(token_ids)) // block_size * block_size
    runs = [("", token_ids[:num_public])] if num_public else []
    runs += [(scope.hex(), token_ids[num_public:])] if len(token_ids) - num_public >= block_size else []
    vector = {
        "block_size": block_size,
        "secret": secret.hex(),
        "domain": NAMESPACE.domain.hex(),
        "runs": [{"scope": run_scope, "token_ids": ids} for run_scope, ids in runs],
    }
    assert our_keys(vector) == reference_keys(vector)


@given(st.lists(st.integers(0, 99), max_size=100), st.lists(st.integers(0, 6), max_size=10))
def test_b41_however_a_path_is_cut_into_runs_its_keys_are_the_same(
    token_ids: list[int], cuts: list[int]
) -> None:
    keys = BlockKeys(chunk_bytes=16)
    packed = pack_tokens(token_ids)
    parent, chained, start = keys.root(b""), [], 0
    for num_chunks in [*cuts, 100]:
        run = keys.chain(parent, packed[start : start + 16 * num_chunks])
        chained += run
        parent = (run or [parent])[-1]
        start += 16 * len(run)
    assert chained == keys.chain(keys.root(b""), packed)


def test_b39_a_key_depends_on_all_that_is_before_its_block() -> None:
    a, b, z = stream("a", 16), stream("b", 16), stream("z", 16)
    paths = [a + z, b + z, z + z]
    assert len({key for path in paths for key in keys_of(path)}) == 6
    assert keys_of(z)[0] == keys_of(z + z)[0] != keys_of(z + z)[1]


def test_b40_keys_do_not_depend_on_what_the_tokens_came_in() -> None:
    token_ids = stream("a", 48)
    forms = [token_ids, tuple(token_ids), np.array(token_ids, np.int32), np.array(token_ids, np.int64)]
    assert len({tuple(keys_of(form)) for form in [*forms, pack_tokens(token_ids)]}) == 1
    root = KEYS.root(b"")
    assert KEYS.chain(root, bytearray(pack_tokens(token_ids))) == KEYS.chain(root, pack_tokens(token_ids))


def test_b40_other_cuts_of_the_same_bytes_are_other_keys() -> None:
    namespaces = [
        Namespace("m", "org_1", "2345"),
        Namespace("m", "org_12345", ""),
        Namespace("m", "a", "bc"),
        Namespace("m", "ab", "c"),
        Namespace("m", "a", "b\0c"),
        Namespace("m", "a", "x" * 65536),
        Namespace("m", "a", "bc", adapter="d"),
        Namespace("md", "a", "bc"),
    ]
    for one, other in combinations(namespaces, 2):
        assert set(keys_of(stream("a", 16), one)).isdisjoint(keys_of(stream("a", 16), other))
    by_token = BlockKeys(chunk_bytes=4)
    assert set(keys_of([1, 23], keys=by_token)).isdisjoint(keys_of([12, 3], keys=by_token))


def test_the_public_scope_is_entered_without_a_trace_and_others_are_not() -> None:
    root = KEYS.root(NAMESPACE.domain)
    assert KEYS.enter(root, b"") == root
    assert len({root, KEYS.enter(root, b"a"), KEYS.enter(root, b"b"), KEYS.enter(KEYS.root(b""), b"a")}) == 4


def test_b94_another_secret_gives_other_keys() -> None:
    secrets = [b"", b"a", b"b", b"a" * 64, b"a" * 65, b"a" * 66]
    machines = [BlockKeys(chunk_bytes=64, secret=secret) for secret in secrets]
    assert len({key for machine in machines for key in keys_of(stream("a", 48), keys=machine)}) == 6 * 3
    assert len({machine.secret_id for machine in machines}) == 6
    assert BlockKeys(chunk_bytes=4, secret=b"a").secret_id == machines[1].secret_id


def test_packed_keys_are_unpacked() -> None:
    keys = keys_of(stream("a", 48))
    assert unpack_keys(b"".join(keys)) == keys
    assert unpack_keys(b"") == []


PROGRAM = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from prefixcache import Namespace, pack_tokens
from prefixcache.block_keys import BlockKeys

namespace = Namespace("model", "tenant")
keys = BlockKeys(chunk_bytes=64, secret=b"secret")
parent = keys.enter(keys.root(namespace.domain), namespace.scope)
arguments = parent, pack_tokens(range(48))
print(*map(bytes.hex, keys.chain(*arguments)))
for method in ("fork", "spawn"):
    with ProcessPoolExecutor(1, mp_context=get_context(method)) as pool:
        assert pool.submit(keys.root, namespace.domain).result() == keys.root(namespace.domain)
        print(*map(bytes.hex, pool.submit(keys.chain, *arguments).result()))
"""


def test_b94_fresh_processes_give_the_same_keys_whatever_their_hash_seed() -> None:
    printed = []
    for hash_seed in (None, "0", "1", "random"):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
        if hash_seed is not None:
            environment["PYTHONHASHSEED"] = hash_seed
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        printed += run.stdout.splitlines()
    here = keys_of(range(48), keys=BlockKeys(chunk_bytes=64, secret=b"secret"))
    assert printed == [" ".join(key.hex() for key in here)] * 12


@pytest.mark.parametrize("chunk_bytes", [-4, 0, 3, 66])
def test_a_chunk_is_a_whole_number_of_tokens(chunk_bytes: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"chunk_bytes is {chunk_bytes}; give 4 bytes"):
        BlockKeys(chunk_bytes=chunk_bytes)

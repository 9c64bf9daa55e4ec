"""Names of cached blocks that are equal in every process and on every machine."""

from __future__ import annotations

from struct import iter_unpack
from typing import NewType, cast

from xxhash import xxh3_128_digest

from prefixcache.errors import InvalidArgumentError
from prefixcache.namespace import PUBLIC_SCOPE, keyed_digest
from prefixcache.token_chunks import TOKEN_BYTES

BlockKey = NewType("BlockKey", bytes)
"""`KEY_BYTES` bytes that stand for a block's tokens, all tokens before them, and who may read them."""

KEY_BYTES = 16
_SECRET_ID_BYTES = 8
_MAX_DIGESTS = 1024


class BlockKeys:
    """Computes block keys: what events, tiers and other machines call a block by.

    A path starts at the key of its domain, each whole chunk hashes the key before it and its own
    tokens, and where the path enters a private scope, the scope is hashed in between. So the same
    chunk has another key at another depth, behind other tokens, for another owner or under
    another secret. docs/block_keys.md has the bytes and test vectors.

    A key identifies, it does not prove: without the secret nobody can tell where a path starts,
    but the hash of the chunks is not a cryptographic one. Whoever gives out blocks by key to
    those who do not trust each other must compare the tokens, as the cache does on every hit.
    """

    __slots__ = ("_chunk_bytes", "_digests", "_secret")

    def __init__(self, *, chunk_bytes: int, secret: bytes = b"") -> None:
        """Raises InvalidArgumentError when `chunk_bytes` is no positive number of whole tokens."""
        if chunk_bytes < 1 or chunk_bytes % TOKEN_BYTES:
            raise InvalidArgumentError(
                f"chunk_bytes is {chunk_bytes}; give {TOKEN_BYTES} bytes for each token of a block"
            )
        self._chunk_bytes = chunk_bytes
        self._secret = secret
        self._digests: dict[tuple[bytes, bytes], bytes] = {}  # the latest: domains and scopes recur

    @property
    def secret_id(self) -> str:
        """Tells whether two machines have the same secret, without telling the secret."""
        purpose = b"block key secret"
        return keyed_digest(b"", secret=self._secret, num_bytes=_SECRET_ID_BYTES, purpose=purpose).hex()

    def root(self, domain: bytes) -> BlockKey:
        """Where all paths of a domain start. It is no block's key."""
        return BlockKey(self._digest(domain, b"block key root"))

    def enter(self, parent: BlockKey, scope: bytes) -> BlockKey:
        """Where paths go on that leave the public ones behind `parent` for a private scope.

        It is no block's key; the public scope's is `parent` itself.
        """
        if scope == PUBLIC_SCOPE:
            return parent
        return BlockKey(self._digest(parent + scope, b"block key scope"))

    def chain(self, parent: BlockKey, edge: bytes | bytearray) -> list[BlockKey]:
        """The keys of all whole chunks of `edge`, packed tokens that follow on `parent`.

        O(bytes), about 80 ns for each block of 16 tokens.
        """
        whole = memoryview(edge)[: len(edge) - len(edge) % self._chunk_bytes]
        chunks = iter_unpack(f"{self._chunk_bytes}s", whole)  # cuts faster than slices do
        key: bytes = parent
        keys = [key := xxh3_128_digest(key + chunk) for (chunk,) in chunks]
        return cast("list[BlockKey]", keys)

    def _digest(self, message: bytes, purpose: bytes) -> bytes:
        digest = self._digests.get((message, purpose))
        if digest is None:
            digest = keyed_digest(message, secret=self._secret, num_bytes=KEY_BYTES, purpose=purpose)
            if len(self._digests) == _MAX_DIGESTS:
                self._digests.clear()
            self._digests[message, purpose] = digest
        return digest


def unpack_keys(packed: bytes) -> list[BlockKey]:
    """The keys that stand one after the other in `packed`."""
    return [BlockKey(packed[i : i + KEY_BYTES]) for i in range(0, len(packed), KEY_BYTES)]

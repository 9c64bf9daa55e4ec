"""Random numbers by counter: each depends on its name alone, so there is no state to keep or to lose."""

from __future__ import annotations

import hashlib
import os


def choice_key(seed: int | None, index: int) -> bytes:
    """Names the random numbers of choice `index`: its own for every (seed, index), new without a seed."""
    if seed is None:
        return os.urandom(16)
    return hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=16).digest()


def uniform(key: bytes, position: int) -> float:
    """The number of `key` at `position`, uniform in [0, 1).

    A generator by counter (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), with a keyed
    hash in place of their ciphers: a microsecond, which is nothing beside a token.
    """
    digest = hashlib.blake2b(position.to_bytes(8, "little"), digest_size=8, key=key).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53

"""The limits that an engine is made with."""

from __future__ import annotations

from dataclasses import dataclass

from prefixcache_worker.attention.approximation import EXACT, Approximation


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Limits of the engine."""

    max_batch_tokens: int = 512
    """Most tokens of one step, prefill and decode together."""
    max_running: int = 64
    """Most sequences that run at once; each choice of a request is one."""
    max_overtakes: int = 256
    """Admissions of later requests after which a waiting one goes before all that came later."""
    context_length: int = 8192
    """Most tokens of a sequence, prompt and output together."""
    approximation: Approximation = EXACT
    """What may be left unread. The KV store's shape has its window, and keeps summaries for its reads."""
    share_reads: bool = True
    """Read a run of KV rows once for all sequences that stand on it. False only to compare."""

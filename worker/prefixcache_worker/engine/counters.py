"""What the engine counts as it goes."""

from __future__ import annotations

from dataclasses import dataclass

from prefixcache import BlockLifeStats, CacheStats
from prefixcache_worker.engine.answer import Answer
from prefixcache_worker.engine.scheduler import Scheduler
from prefixcache_worker.engine.stats import (
    BlockStats,
    EngineStats,
    LookupStats,
    RequestStats,
    TierStats,
    TokenStats,
    WaitingStats,
)


@dataclass(slots=True)
class Counters:
    """Sums and peaks since the start."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    restored_tokens: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    bypassed: int = 0
    generated_tokens: int = 0
    kv_rows_read: int = 0
    kv_rows_unshared: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    steps: int = 0
    peak_live: int = 0
    peak_live_unshared: int = 0
    peak_used_slots: int = 0
    peak_running: int = 0

    def note_start(self, answer: Answer) -> None:
        """A prompt runs for the first time."""
        self.prompt_tokens += len(answer.request.prompt_token_ids)
        self.cached_tokens += answer.num_cached_tokens
        self.restored_tokens += answer.num_restored_tokens
        if answer.request.bypasses_cache:
            self.bypassed += 1
        else:
            self.queried_tokens += len(answer.request.prompt_token_ids)
            self.hit_tokens += answer.num_cached_tokens

    def note_rows(self, num_read: int, num_unshared: int) -> None:
        """A step has read so many rows of KV, and would have read so many without sharing."""
        self.kv_rows_read += num_read
        self.kv_rows_unshared += num_unshared

    def note_peaks(self, cache: CacheStats, *, num_running: int) -> None:
        """Raise the peaks to what is held now."""
        self.peak_live = max(self.peak_live, cache.num_live)
        self.peak_live_unshared = max(self.peak_live_unshared, cache.num_live_unshared)
        self.peak_used_slots = max(self.peak_used_slots, cache.num_used_slots)
        self.peak_running = max(self.peak_running, num_running)

    def reset_peaks(self, cache: CacheStats, *, num_running: int) -> None:
        """The peaks start anew from what is held now."""
        self.peak_live, self.peak_live_unshared = cache.num_live, cache.num_live_unshared
        self.peak_used_slots, self.peak_running = cache.num_used_slots, num_running

    def stats(
        self,
        cache: CacheStats,
        scheduler: Scheduler,
        *,
        block_bytes: int,
        block_size: int,
        life: BlockLifeStats | None,
    ) -> EngineStats:
        """These counts, and those of cache and scheduler, as they are now."""
        priorities = [sequence.priority for sequence in scheduler.waiting]
        num_rows = [sequence.num_computed_tokens for sequence in scheduler.running]
        return EngineStats(
            blocks=BlockStats(
                total=cache.num_blocks,
                free=cache.num_free,
                idle=cache.num_idle,
                live=cache.num_live,
                live_unshared=cache.num_live_unshared,
                peak_live=self.peak_live,
                peak_live_unshared=self.peak_live_unshared,
                evicted=cache.num_evicted,
                copied=cache.num_copied,
                block_bytes=block_bytes,
                block_size=block_size,
                used_slots=cache.num_used_slots,
                peak_used_slots=self.peak_used_slots,
            ),
            tokens=TokenStats(
                prompt=self.prompt_tokens,
                cached=self.cached_tokens,
                computed=self.prompt_tokens - self.cached_tokens,
                generated=self.generated_tokens,
                kv_rows_read=self.kv_rows_read,
                kv_rows_unshared=self.kv_rows_unshared,
                restored=self.restored_tokens,
            ),
            requests=RequestStats(
                waiting=len(scheduler.waiting),
                running=len(scheduler.running),
                finished=self.finished,
                cancelled=self.cancelled,
                failed=self.failed,
                preemptions=scheduler.num_preemptions,
                promoted=scheduler.waiting.num_promoted,
                followed=scheduler.waiting.num_parked,
                steps=self.steps,
                peak_running=self.peak_running,
                running_tokens=sum(num_rows),
                longest=max(num_rows, default=0),
            ),
            waiting=WaitingStats(
                low=sum(priority < 0 for priority in priorities),
                normal=priorities.count(0),
                high=sum(priority > 0 for priority in priorities),
            ),
            lookups=LookupStats(
                queried_tokens=self.queried_tokens,
                hit_tokens=self.hit_tokens,
                bypassed_requests=self.bypassed,
            ),
            life=life,
            tiers=tuple(
                TierStats(
                    name=tier.name,
                    num_blocks=tier.num_blocks,
                    used_blocks=tier.num_used,
                    stored=tier.num_stored,
                    restored=tier.num_restored,
                    evicted=tier.num_evicted,
                )
                for tier in cache.tiers
            ),
        )

"""Recorded traces, replayed through the real cache without a model."""

from prefixcache.replay.comparison import OPTIMUM, Comparison, ReplayRow
from prefixcache.replay.counts import ReplayCounts
from prefixcache.replay.left_out import LeftOut
from prefixcache.replay.optimum import Optimum
from prefixcache.replay.replayer import Replayer
from prefixcache.replay.trace import DEFAULT_NAME, Trace, TraceRequest, read_trace
from prefixcache.replay.trace_fields import TraceError

__all__ = [
    "DEFAULT_NAME",
    "OPTIMUM",
    "Comparison",
    "LeftOut",
    "Optimum",
    "ReplayCounts",
    "ReplayRow",
    "Replayer",
    "Trace",
    "TraceError",
    "TraceRequest",
    "read_trace",
]

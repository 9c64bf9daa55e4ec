"""Names in a profile for what torch does not see: our own kernels."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch

STEP = "prefixcache::step"
ATTENTION = "prefixcache::attention"
PRODUCT = "prefixcache::product"

_NOTHING = nullcontext()


def profiler_range(name: str) -> AbstractContextManager[Any]:
    """A range of this name while torch's profiler records on this thread, and with a GPU an NVTX range too.

    Nothing at other times: then it costs two calls.
    """
    if not torch._C._autograd._profiler_enabled():
        return _NOTHING
    ranges = ExitStack()
    ranges.enter_context(torch.profiler.record_function(name))
    if torch.cuda.is_available():
        ranges.enter_context(torch.cuda.nvtx.range(name))
    return ranges

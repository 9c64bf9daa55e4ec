"""The Python client of a prefixcache worker.

>>> from prefixcache_client import Client
>>> with Client("127.0.0.1:50051") as client:  # doctest: +SKIP
...     print(client.generate("The capital of France is", max_tokens=8).text)
"""

from prefixcache_client.answers import (
    Choice,
    Completion,
    Delta,
    Event,
    FinishReason,
    Generation,
    ModelInfo,
    PromptLogprobs,
    Timing,
    TokenLogprobs,
    Usage,
)
from prefixcache_client.async_client import AsyncClient
from prefixcache_client.cache_answers import (
    BlockStats,
    EvictionStats,
    LatencyStats,
    RequestStats,
    SavedSnapshot,
    Stats,
    TierStats,
    TokenStats,
    Tree,
    TreeNode,
)
from prefixcache_client.cache_events import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheEvent,
    StateComplete,
)
from prefixcache_client.client import Client
from prefixcache_client.errors import (
    AlreadyExistsError,
    CallCancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    FieldViolation,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    PrefixCacheClientError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from prefixcache_client.explanation import Divergence, Explanation, MissCause
from prefixcache_client.live_requests import LiveRequest, LiveRequests, RequestState
from prefixcache_client.messages import GenerateOptions, Message, Prompt
from prefixcache_client.prefix_answers import CreatedPrefix, Prefix, TenantUsage
from prefixcache_client.tls import Tls

__all__ = [
    "AlreadyExistsError",
    "AsyncClient",
    "BlockStats",
    "BlocksRemoved",
    "BlocksStored",
    "CacheCleared",
    "CacheEvent",
    "CallCancelledError",
    "Choice",
    "Client",
    "Completion",
    "CreatedPrefix",
    "DeadlineExceededError",
    "Delta",
    "Divergence",
    "Event",
    "EvictionStats",
    "Explanation",
    "FailedPreconditionError",
    "FieldViolation",
    "FinishReason",
    "GenerateOptions",
    "Generation",
    "InternalError",
    "InvalidArgumentError",
    "LatencyStats",
    "LiveRequest",
    "LiveRequests",
    "Message",
    "MissCause",
    "ModelInfo",
    "NotFoundError",
    "OutOfRangeError",
    "PermissionDeniedError",
    "Prefix",
    "PrefixCacheClientError",
    "Prompt",
    "PromptLogprobs",
    "RequestState",
    "RequestStats",
    "ResourceExhaustedError",
    "SavedSnapshot",
    "StateComplete",
    "Stats",
    "TenantUsage",
    "TierStats",
    "Timing",
    "Tls",
    "TokenLogprobs",
    "TokenStats",
    "Tree",
    "TreeNode",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "Usage",
]

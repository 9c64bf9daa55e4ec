from prefixcache.v1 import inference_pb2 as _inference_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MissCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MISS_CAUSE_UNSPECIFIED: _ClassVar[MissCause]
    MISS_CAUSE_NONE: _ClassVar[MissCause]
    MISS_CAUSE_NEVER_SEEN: _ClassVar[MissCause]
    MISS_CAUSE_EVICTED: _ClassVar[MissCause]
    MISS_CAUSE_EXPIRED: _ClassVar[MissCause]
    MISS_CAUSE_OTHER_TENANT: _ClassVar[MissCause]
    MISS_CAUSE_OTHER_SCOPE: _ClassVar[MissCause]
    MISS_CAUSE_OTHER_MODEL: _ClassVar[MissCause]
    MISS_CAUSE_BELOW_BLOCK: _ClassVar[MissCause]
    MISS_CAUSE_CACHE_OFF: _ClassVar[MissCause]
MISS_CAUSE_UNSPECIFIED: MissCause
MISS_CAUSE_NONE: MissCause
MISS_CAUSE_NEVER_SEEN: MissCause
MISS_CAUSE_EVICTED: MissCause
MISS_CAUSE_EXPIRED: MissCause
MISS_CAUSE_OTHER_TENANT: MissCause
MISS_CAUSE_OTHER_SCOPE: MissCause
MISS_CAUSE_OTHER_MODEL: MissCause
MISS_CAUSE_BELOW_BLOCK: MissCause
MISS_CAUSE_CACHE_OFF: MissCause

class Prefix(_message.Message):
    __slots__ = ("prefix_id", "tenant", "label", "num_tokens", "num_kept_tokens", "num_blocks", "public", "ttl_seconds", "seconds_left", "num_uses")
    PREFIX_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_KEPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    NUM_USES_FIELD_NUMBER: _ClassVar[int]
    prefix_id: str
    tenant: str
    label: str
    num_tokens: int
    num_kept_tokens: int
    num_blocks: int
    public: bool
    ttl_seconds: float
    seconds_left: float
    num_uses: int
    def __init__(self, prefix_id: _Optional[str] = ..., tenant: _Optional[str] = ..., label: _Optional[str] = ..., num_tokens: _Optional[int] = ..., num_kept_tokens: _Optional[int] = ..., num_blocks: _Optional[int] = ..., public: _Optional[bool] = ..., ttl_seconds: _Optional[float] = ..., seconds_left: _Optional[float] = ..., num_uses: _Optional[int] = ...) -> None: ...

class CreatePrefixRequest(_message.Message):
    __slots__ = ("text", "token_ids", "chat", "public", "salt", "ttl_seconds", "label")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: _inference_pb2.TokenIds
    chat: _inference_pb2.ChatMessages
    public: bool
    salt: str
    ttl_seconds: float
    label: str
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Union[_inference_pb2.TokenIds, _Mapping]] = ..., chat: _Optional[_Union[_inference_pb2.ChatMessages, _Mapping]] = ..., public: _Optional[bool] = ..., salt: _Optional[str] = ..., ttl_seconds: _Optional[float] = ..., label: _Optional[str] = ...) -> None: ...

class CreatePrefixResponse(_message.Message):
    __slots__ = ("prefix", "usage")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    prefix: Prefix
    usage: _inference_pb2.Usage
    def __init__(self, prefix: _Optional[_Union[Prefix, _Mapping]] = ..., usage: _Optional[_Union[_inference_pb2.Usage, _Mapping]] = ...) -> None: ...

class GetPrefixRequest(_message.Message):
    __slots__ = ("prefix_id",)
    PREFIX_ID_FIELD_NUMBER: _ClassVar[int]
    prefix_id: str
    def __init__(self, prefix_id: _Optional[str] = ...) -> None: ...

class GetPrefixResponse(_message.Message):
    __slots__ = ("prefix",)
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: Prefix
    def __init__(self, prefix: _Optional[_Union[Prefix, _Mapping]] = ...) -> None: ...

class ListPrefixesRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListPrefixesResponse(_message.Message):
    __slots__ = ("prefixes", "next_page_token")
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    prefixes: _containers.RepeatedCompositeFieldContainer[Prefix]
    next_page_token: str
    def __init__(self, prefixes: _Optional[_Iterable[_Union[Prefix, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class UpdatePrefixRequest(_message.Message):
    __slots__ = ("prefix_id", "ttl_seconds", "label")
    PREFIX_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    prefix_id: str
    ttl_seconds: float
    label: str
    def __init__(self, prefix_id: _Optional[str] = ..., ttl_seconds: _Optional[float] = ..., label: _Optional[str] = ...) -> None: ...

class UpdatePrefixResponse(_message.Message):
    __slots__ = ("prefix",)
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: Prefix
    def __init__(self, prefix: _Optional[_Union[Prefix, _Mapping]] = ...) -> None: ...

class DeletePrefixRequest(_message.Message):
    __slots__ = ("prefix_id",)
    PREFIX_ID_FIELD_NUMBER: _ClassVar[int]
    prefix_id: str
    def __init__(self, prefix_id: _Optional[str] = ...) -> None: ...

class DeletePrefixResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetUsageRequest(_message.Message):
    __slots__ = ("tenant", "all_tenants")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ALL_TENANTS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    all_tenants: bool
    def __init__(self, tenant: _Optional[str] = ..., all_tenants: _Optional[bool] = ...) -> None: ...

class TenantUsage(_message.Message):
    __slots__ = ("tenant", "finished_requests", "unfinished_requests", "live_requests", "prompt_tokens", "cached_tokens", "computed_tokens", "completion_tokens", "written_tokens", "block_seconds", "num_blocks", "num_charged_blocks", "num_pinned_blocks", "num_evicted_blocks", "floor_blocks", "ceiling_blocks")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    LIVE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_CHARGED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_PINNED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_EVICTED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FLOOR_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CEILING_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    finished_requests: int
    unfinished_requests: int
    live_requests: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    completion_tokens: int
    written_tokens: int
    block_seconds: float
    num_blocks: int
    num_charged_blocks: float
    num_pinned_blocks: int
    num_evicted_blocks: int
    floor_blocks: int
    ceiling_blocks: int
    def __init__(self, tenant: _Optional[str] = ..., finished_requests: _Optional[int] = ..., unfinished_requests: _Optional[int] = ..., live_requests: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., written_tokens: _Optional[int] = ..., block_seconds: _Optional[float] = ..., num_blocks: _Optional[int] = ..., num_charged_blocks: _Optional[float] = ..., num_pinned_blocks: _Optional[int] = ..., num_evicted_blocks: _Optional[int] = ..., floor_blocks: _Optional[int] = ..., ceiling_blocks: _Optional[int] = ...) -> None: ...

class GetUsageResponse(_message.Message):
    __slots__ = ("tenants",)
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    tenants: _containers.RepeatedCompositeFieldContainer[TenantUsage]
    def __init__(self, tenants: _Optional[_Iterable[_Union[TenantUsage, _Mapping]]] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("text", "token_ids", "chat", "cache")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: _inference_pb2.TokenIds
    chat: _inference_pb2.ChatMessages
    cache: _inference_pb2.CacheOptions
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Union[_inference_pb2.TokenIds, _Mapping]] = ..., chat: _Optional[_Union[_inference_pb2.ChatMessages, _Mapping]] = ..., cache: _Optional[_Union[_inference_pb2.CacheOptions, _Mapping]] = ...) -> None: ...

class Divergence(_message.Message):
    __slots__ = ("position", "prompt_token", "cached_token", "prompt_preview", "cached_preview")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PROMPT_PREVIEW_FIELD_NUMBER: _ClassVar[int]
    CACHED_PREVIEW_FIELD_NUMBER: _ClassVar[int]
    position: int
    prompt_token: int
    cached_token: int
    prompt_preview: str
    cached_preview: str
    def __init__(self, position: _Optional[int] = ..., prompt_token: _Optional[int] = ..., cached_token: _Optional[int] = ..., prompt_preview: _Optional[str] = ..., cached_preview: _Optional[str] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("num_prompt_tokens", "num_cached_tokens", "cause", "divergence", "summary", "held_by_tenant")
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    DIVERGENCE_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    HELD_BY_TENANT_FIELD_NUMBER: _ClassVar[int]
    num_prompt_tokens: int
    num_cached_tokens: int
    cause: MissCause
    divergence: Divergence
    summary: str
    held_by_tenant: str
    def __init__(self, num_prompt_tokens: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., cause: _Optional[_Union[MissCause, str]] = ..., divergence: _Optional[_Union[Divergence, _Mapping]] = ..., summary: _Optional[str] = ..., held_by_tenant: _Optional[str] = ...) -> None: ...

class WatchEventsRequest(_message.Message):
    __slots__ = ("from_sequence_number",)
    FROM_SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    from_sequence_number: int
    def __init__(self, from_sequence_number: _Optional[int] = ...) -> None: ...

class WatchEventsResponse(_message.Message):
    __slots__ = ("sequence_number", "stored", "removed", "cleared", "state_complete")
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    STATE_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    sequence_number: int
    stored: BlocksStored
    removed: BlocksRemoved
    cleared: CacheCleared
    state_complete: StateComplete
    def __init__(self, sequence_number: _Optional[int] = ..., stored: _Optional[_Union[BlocksStored, _Mapping]] = ..., removed: _Optional[_Union[BlocksRemoved, _Mapping]] = ..., cleared: _Optional[_Union[CacheCleared, _Mapping]] = ..., state_complete: _Optional[_Union[StateComplete, _Mapping]] = ...) -> None: ...

class BlocksStored(_message.Message):
    __slots__ = ("parent_key", "block_keys", "token_ids", "public")
    PARENT_KEY_FIELD_NUMBER: _ClassVar[int]
    BLOCK_KEYS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_FIELD_NUMBER: _ClassVar[int]
    parent_key: bytes
    block_keys: _containers.RepeatedScalarFieldContainer[bytes]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    public: bool
    def __init__(self, parent_key: _Optional[bytes] = ..., block_keys: _Optional[_Iterable[bytes]] = ..., token_ids: _Optional[_Iterable[int]] = ..., public: _Optional[bool] = ...) -> None: ...

class BlocksRemoved(_message.Message):
    __slots__ = ("block_keys", "cause")
    BLOCK_KEYS_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    block_keys: _containers.RepeatedScalarFieldContainer[bytes]
    cause: str
    def __init__(self, block_keys: _Optional[_Iterable[bytes]] = ..., cause: _Optional[str] = ...) -> None: ...

class CacheCleared(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StateComplete(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResetRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResetResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SnapshotResponse(_message.Message):
    __slots__ = ("num_blocks", "num_bytes", "seconds")
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    num_bytes: int
    seconds: float
    def __init__(self, num_blocks: _Optional[int] = ..., num_bytes: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class RestoreRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RestoreResponse(_message.Message):
    __slots__ = ("num_blocks",)
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    def __init__(self, num_blocks: _Optional[int] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ("reset_peaks",)
    RESET_PEAKS_FIELD_NUMBER: _ClassVar[int]
    reset_peaks: bool
    def __init__(self, reset_peaks: _Optional[bool] = ...) -> None: ...

class BlockStats(_message.Message):
    __slots__ = ("total", "free", "idle", "live", "live_unshared", "peak_live", "peak_live_unshared", "evicted", "copied", "block_bytes", "block_size", "used_slots", "peak_used_slots")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    LIVE_UNSHARED_FIELD_NUMBER: _ClassVar[int]
    PEAK_LIVE_FIELD_NUMBER: _ClassVar[int]
    PEAK_LIVE_UNSHARED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    COPIED_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    USED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    PEAK_USED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    total: int
    free: int
    idle: int
    live: int
    live_unshared: int
    peak_live: int
    peak_live_unshared: int
    evicted: int
    copied: int
    block_bytes: int
    block_size: int
    used_slots: int
    peak_used_slots: int
    def __init__(self, total: _Optional[int] = ..., free: _Optional[int] = ..., idle: _Optional[int] = ..., live: _Optional[int] = ..., live_unshared: _Optional[int] = ..., peak_live: _Optional[int] = ..., peak_live_unshared: _Optional[int] = ..., evicted: _Optional[int] = ..., copied: _Optional[int] = ..., block_bytes: _Optional[int] = ..., block_size: _Optional[int] = ..., used_slots: _Optional[int] = ..., peak_used_slots: _Optional[int] = ...) -> None: ...

class TokenStats(_message.Message):
    __slots__ = ("prompt", "cached", "computed", "generated", "kv_rows_read", "kv_rows_unshared", "restored")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    GENERATED_FIELD_NUMBER: _ClassVar[int]
    KV_ROWS_READ_FIELD_NUMBER: _ClassVar[int]
    KV_ROWS_UNSHARED_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    prompt: int
    cached: int
    computed: int
    generated: int
    kv_rows_read: int
    kv_rows_unshared: int
    restored: int
    def __init__(self, prompt: _Optional[int] = ..., cached: _Optional[int] = ..., computed: _Optional[int] = ..., generated: _Optional[int] = ..., kv_rows_read: _Optional[int] = ..., kv_rows_unshared: _Optional[int] = ..., restored: _Optional[int] = ...) -> None: ...

class TierStats(_message.Message):
    __slots__ = ("name", "num_blocks", "used_blocks", "stored", "restored", "evicted")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    USED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_blocks: int
    used_blocks: int
    stored: int
    restored: int
    evicted: int
    def __init__(self, name: _Optional[str] = ..., num_blocks: _Optional[int] = ..., used_blocks: _Optional[int] = ..., stored: _Optional[int] = ..., restored: _Optional[int] = ..., evicted: _Optional[int] = ...) -> None: ...

class RequestStats(_message.Message):
    __slots__ = ("waiting", "running", "finished", "cancelled", "preemptions", "steps", "failed", "peak_running", "promoted", "followed", "running_tokens", "longest")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    PEAK_RUNNING_FIELD_NUMBER: _ClassVar[int]
    PROMOTED_FIELD_NUMBER: _ClassVar[int]
    FOLLOWED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LONGEST_FIELD_NUMBER: _ClassVar[int]
    waiting: int
    running: int
    finished: int
    cancelled: int
    preemptions: int
    steps: int
    failed: int
    peak_running: int
    promoted: int
    followed: int
    running_tokens: int
    longest: int
    def __init__(self, waiting: _Optional[int] = ..., running: _Optional[int] = ..., finished: _Optional[int] = ..., cancelled: _Optional[int] = ..., preemptions: _Optional[int] = ..., steps: _Optional[int] = ..., failed: _Optional[int] = ..., peak_running: _Optional[int] = ..., promoted: _Optional[int] = ..., followed: _Optional[int] = ..., running_tokens: _Optional[int] = ..., longest: _Optional[int] = ...) -> None: ...

class LatencyStats(_message.Message):
    __slots__ = ("name", "count", "p50_seconds", "p90_seconds", "p99_seconds")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    P50_SECONDS_FIELD_NUMBER: _ClassVar[int]
    P90_SECONDS_FIELD_NUMBER: _ClassVar[int]
    P99_SECONDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    count: int
    p50_seconds: float
    p90_seconds: float
    p99_seconds: float
    def __init__(self, name: _Optional[str] = ..., count: _Optional[int] = ..., p50_seconds: _Optional[float] = ..., p90_seconds: _Optional[float] = ..., p99_seconds: _Optional[float] = ...) -> None: ...

class EvictionStats(_message.Message):
    __slots__ = ("cause", "num_blocks")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    cause: str
    num_blocks: int
    def __init__(self, cause: _Optional[str] = ..., num_blocks: _Optional[int] = ...) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("blocks", "tokens", "requests", "tiers", "latencies", "evictions")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    LATENCIES_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_FIELD_NUMBER: _ClassVar[int]
    blocks: BlockStats
    tokens: TokenStats
    requests: RequestStats
    tiers: _containers.RepeatedCompositeFieldContainer[TierStats]
    latencies: _containers.RepeatedCompositeFieldContainer[LatencyStats]
    evictions: _containers.RepeatedCompositeFieldContainer[EvictionStats]
    def __init__(self, blocks: _Optional[_Union[BlockStats, _Mapping]] = ..., tokens: _Optional[_Union[TokenStats, _Mapping]] = ..., requests: _Optional[_Union[RequestStats, _Mapping]] = ..., tiers: _Optional[_Iterable[_Union[TierStats, _Mapping]]] = ..., latencies: _Optional[_Iterable[_Union[LatencyStats, _Mapping]]] = ..., evictions: _Optional[_Iterable[_Union[EvictionStats, _Mapping]]] = ...) -> None: ...

class DumpTreeRequest(_message.Message):
    __slots__ = ("max_depth",)
    MAX_DEPTH_FIELD_NUMBER: _ClassVar[int]
    max_depth: int
    def __init__(self, max_depth: _Optional[int] = ...) -> None: ...

class TreeNode(_message.Message):
    __slots__ = ("id", "parent_id", "public", "tenant", "num_tokens", "num_blocks", "num_live_blocks", "num_readers", "preview", "last_used")
    ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_LIVE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_READERS_FIELD_NUMBER: _ClassVar[int]
    PREVIEW_FIELD_NUMBER: _ClassVar[int]
    LAST_USED_FIELD_NUMBER: _ClassVar[int]
    id: int
    parent_id: int
    public: bool
    tenant: str
    num_tokens: int
    num_blocks: int
    num_live_blocks: int
    num_readers: int
    preview: str
    last_used: int
    def __init__(self, id: _Optional[int] = ..., parent_id: _Optional[int] = ..., public: _Optional[bool] = ..., tenant: _Optional[str] = ..., num_tokens: _Optional[int] = ..., num_blocks: _Optional[int] = ..., num_live_blocks: _Optional[int] = ..., num_readers: _Optional[int] = ..., preview: _Optional[str] = ..., last_used: _Optional[int] = ...) -> None: ...

class DumpTreeResponse(_message.Message):
    __slots__ = ("nodes", "num_left_out")
    NODES_FIELD_NUMBER: _ClassVar[int]
    NUM_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[TreeNode]
    num_left_out: int
    def __init__(self, nodes: _Optional[_Iterable[_Union[TreeNode, _Mapping]]] = ..., num_left_out: _Optional[int] = ...) -> None: ...

from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

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
    __slots__ = ("prompt", "cached", "computed", "generated", "kv_rows_read", "kv_rows_unshared")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    GENERATED_FIELD_NUMBER: _ClassVar[int]
    KV_ROWS_READ_FIELD_NUMBER: _ClassVar[int]
    KV_ROWS_UNSHARED_FIELD_NUMBER: _ClassVar[int]
    prompt: int
    cached: int
    computed: int
    generated: int
    kv_rows_read: int
    kv_rows_unshared: int
    def __init__(self, prompt: _Optional[int] = ..., cached: _Optional[int] = ..., computed: _Optional[int] = ..., generated: _Optional[int] = ..., kv_rows_read: _Optional[int] = ..., kv_rows_unshared: _Optional[int] = ...) -> None: ...

class RequestStats(_message.Message):
    __slots__ = ("waiting", "running", "finished", "cancelled", "preemptions", "steps", "failed", "peak_running", "promoted", "followed")
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
    def __init__(self, waiting: _Optional[int] = ..., running: _Optional[int] = ..., finished: _Optional[int] = ..., cancelled: _Optional[int] = ..., preemptions: _Optional[int] = ..., steps: _Optional[int] = ..., failed: _Optional[int] = ..., peak_running: _Optional[int] = ..., promoted: _Optional[int] = ..., followed: _Optional[int] = ...) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("blocks", "tokens", "requests")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    blocks: BlockStats
    tokens: TokenStats
    requests: RequestStats
    def __init__(self, blocks: _Optional[_Union[BlockStats, _Mapping]] = ..., tokens: _Optional[_Union[TokenStats, _Mapping]] = ..., requests: _Optional[_Union[RequestStats, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[TreeNode]
    def __init__(self, nodes: _Optional[_Iterable[_Union[TreeNode, _Mapping]]] = ...) -> None: ...

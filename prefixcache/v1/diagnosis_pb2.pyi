from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RequestState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REQUEST_STATE_UNSPECIFIED: _ClassVar[RequestState]
    REQUEST_STATE_WAITING: _ClassVar[RequestState]
    REQUEST_STATE_PREFILLING: _ClassVar[RequestState]
    REQUEST_STATE_DECODING: _ClassVar[RequestState]
    REQUEST_STATE_PAUSED: _ClassVar[RequestState]

class StepFault(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STEP_FAULT_UNSPECIFIED: _ClassVar[StepFault]
    STEP_FAULT_START: _ClassVar[StepFault]
    STEP_FAULT_ROWS_READ_MORE: _ClassVar[StepFault]
    STEP_FAULT_ROWS_READ_LESS: _ClassVar[StepFault]
    STEP_FAULT_FOREIGN_ROWS: _ClassVar[StepFault]
    STEP_FAULT_OVERLAP: _ClassVar[StepFault]
    STEP_FAULT_BORDER: _ClassVar[StepFault]
    STEP_FAULT_COUNTS: _ClassVar[StepFault]
    STEP_FAULT_COPY: _ClassVar[StepFault]
REQUEST_STATE_UNSPECIFIED: RequestState
REQUEST_STATE_WAITING: RequestState
REQUEST_STATE_PREFILLING: RequestState
REQUEST_STATE_DECODING: RequestState
REQUEST_STATE_PAUSED: RequestState
STEP_FAULT_UNSPECIFIED: StepFault
STEP_FAULT_START: StepFault
STEP_FAULT_ROWS_READ_MORE: StepFault
STEP_FAULT_ROWS_READ_LESS: StepFault
STEP_FAULT_FOREIGN_ROWS: StepFault
STEP_FAULT_OVERLAP: StepFault
STEP_FAULT_BORDER: StepFault
STEP_FAULT_COUNTS: StepFault
STEP_FAULT_COPY: StepFault

class ListRequestsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LiveRequest(_message.Message):
    __slots__ = ("request_id", "tenant", "state", "prompt_tokens", "cached_tokens", "computed_tokens", "output_tokens", "num_blocks", "num_shared_blocks", "num_choices", "age_seconds", "queue_seconds", "priority")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_SHARED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_CHOICES_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    state: RequestState
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    output_tokens: int
    num_blocks: int
    num_shared_blocks: int
    num_choices: int
    age_seconds: float
    queue_seconds: float
    priority: int
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., state: _Optional[_Union[RequestState, str]] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., num_blocks: _Optional[int] = ..., num_shared_blocks: _Optional[int] = ..., num_choices: _Optional[int] = ..., age_seconds: _Optional[float] = ..., queue_seconds: _Optional[float] = ..., priority: _Optional[int] = ...) -> None: ...

class ListRequestsResponse(_message.Message):
    __slots__ = ("requests", "num_left_out")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[LiveRequest]
    num_left_out: int
    def __init__(self, requests: _Optional[_Iterable[_Union[LiveRequest, _Mapping]]] = ..., num_left_out: _Optional[int] = ...) -> None: ...

class GetSettingsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetSettingsResponse(_message.Message):
    __slots__ = ("settings", "machine")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class MachineEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.ScalarMap[str, str]
    machine: _containers.ScalarMap[str, str]
    def __init__(self, settings: _Optional[_Mapping[str, str]] = ..., machine: _Optional[_Mapping[str, str]] = ...) -> None: ...

class GetLayoutRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TensorPlace(_message.Message):
    __slots__ = ("name", "dtype", "size", "strides", "address", "element_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    STRIDES_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    size: _containers.RepeatedScalarFieldContainer[int]
    strides: _containers.RepeatedScalarFieldContainer[int]
    address: int
    element_bytes: int
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., size: _Optional[_Iterable[int]] = ..., strides: _Optional[_Iterable[int]] = ..., address: _Optional[int] = ..., element_bytes: _Optional[int] = ...) -> None: ...

class GetLayoutResponse(_message.Message):
    __slots__ = ("order", "tensors", "attention", "token_bytes")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    order: str
    tensors: _containers.RepeatedCompositeFieldContainer[TensorPlace]
    attention: str
    token_bytes: int
    def __init__(self, order: _Optional[str] = ..., tensors: _Optional[_Iterable[_Union[TensorPlace, _Mapping]]] = ..., attention: _Optional[str] = ..., token_bytes: _Optional[int] = ...) -> None: ...

class WatchStepsRequest(_message.Message):
    __slots__ = ("max_steps",)
    MAX_STEPS_FIELD_NUMBER: _ClassVar[int]
    max_steps: int
    def __init__(self, max_steps: _Optional[int] = ...) -> None: ...

class StepFinding(_message.Message):
    __slots__ = ("fault", "request_id", "expected", "found", "sentence")
    FAULT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    fault: StepFault
    request_id: str
    expected: int
    found: int
    sentence: str
    def __init__(self, fault: _Optional[_Union[StepFault, str]] = ..., request_id: _Optional[str] = ..., expected: _Optional[int] = ..., found: _Optional[int] = ..., sentence: _Optional[str] = ...) -> None: ...

class WatchStepsResponse(_message.Message):
    __slots__ = ("number", "num_sequences", "num_tokens", "num_prompt_tokens", "rows_needed", "rows_read", "rows_unshared", "longest", "num_block_copies", "seconds", "plan_seconds", "model_seconds", "live_blocks", "findings", "num_lost")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROWS_NEEDED_FIELD_NUMBER: _ClassVar[int]
    ROWS_READ_FIELD_NUMBER: _ClassVar[int]
    ROWS_UNSHARED_FIELD_NUMBER: _ClassVar[int]
    LONGEST_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCK_COPIES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    PLAN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MODEL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LIVE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOST_FIELD_NUMBER: _ClassVar[int]
    number: int
    num_sequences: int
    num_tokens: int
    num_prompt_tokens: int
    rows_needed: int
    rows_read: int
    rows_unshared: int
    longest: int
    num_block_copies: int
    seconds: float
    plan_seconds: float
    model_seconds: float
    live_blocks: int
    findings: _containers.RepeatedCompositeFieldContainer[StepFinding]
    num_lost: int
    def __init__(self, number: _Optional[int] = ..., num_sequences: _Optional[int] = ..., num_tokens: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., rows_needed: _Optional[int] = ..., rows_read: _Optional[int] = ..., rows_unshared: _Optional[int] = ..., longest: _Optional[int] = ..., num_block_copies: _Optional[int] = ..., seconds: _Optional[float] = ..., plan_seconds: _Optional[float] = ..., model_seconds: _Optional[float] = ..., live_blocks: _Optional[int] = ..., findings: _Optional[_Iterable[_Union[StepFinding, _Mapping]]] = ..., num_lost: _Optional[int] = ...) -> None: ...

class CheckIndexesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckIndexesResponse(_message.Message):
    __slots__ = ("findings", "num_nodes", "num_blocks", "seconds")
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    NUM_NODES_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    findings: _containers.RepeatedScalarFieldContainer[str]
    num_nodes: int
    num_blocks: int
    seconds: float
    def __init__(self, findings: _Optional[_Iterable[str]] = ..., num_nodes: _Optional[int] = ..., num_blocks: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class ProfileStepsRequest(_message.Message):
    __slots__ = ("num_steps", "timeout_seconds", "with_trace")
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WITH_TRACE_FIELD_NUMBER: _ClassVar[int]
    num_steps: int
    timeout_seconds: float
    with_trace: bool
    def __init__(self, num_steps: _Optional[int] = ..., timeout_seconds: _Optional[float] = ..., with_trace: _Optional[bool] = ...) -> None: ...

class StepProfile(_message.Message):
    __slots__ = ("num_steps", "num_tokens", "seconds", "num_copies", "copied_bytes", "filled_bytes", "attention_seconds", "product_seconds", "copy_seconds", "kv_bytes", "weight_bytes", "operations")
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_COPIES_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILLED_BYTES_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PRODUCT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COPY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    num_steps: int
    num_tokens: int
    seconds: float
    num_copies: int
    copied_bytes: int
    filled_bytes: int
    attention_seconds: float
    product_seconds: float
    copy_seconds: float
    kv_bytes: int
    weight_bytes: int
    operations: _containers.RepeatedCompositeFieldContainer[ProfiledOperation]
    def __init__(self, num_steps: _Optional[int] = ..., num_tokens: _Optional[int] = ..., seconds: _Optional[float] = ..., num_copies: _Optional[int] = ..., copied_bytes: _Optional[int] = ..., filled_bytes: _Optional[int] = ..., attention_seconds: _Optional[float] = ..., product_seconds: _Optional[float] = ..., copy_seconds: _Optional[float] = ..., kv_bytes: _Optional[int] = ..., weight_bytes: _Optional[int] = ..., operations: _Optional[_Iterable[_Union[ProfiledOperation, _Mapping]]] = ...) -> None: ...

class ProfiledOperation(_message.Message):
    __slots__ = ("name", "count", "seconds", "copied_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    count: int
    seconds: float
    copied_bytes: int
    def __init__(self, name: _Optional[str] = ..., count: _Optional[int] = ..., seconds: _Optional[float] = ..., copied_bytes: _Optional[int] = ...) -> None: ...

class ProfileStepsResponse(_message.Message):
    __slots__ = ("profile", "trace")
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    profile: StepProfile
    trace: bytes
    def __init__(self, profile: _Optional[_Union[StepProfile, _Mapping]] = ..., trace: _Optional[bytes] = ...) -> None: ...

class MeasureMachineRequest(_message.Message):
    __slots__ = ("num_rows",)
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    num_rows: int
    def __init__(self, num_rows: _Optional[int] = ...) -> None: ...

class LayoutTime(_message.Message):
    __slots__ = ("order", "seconds")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    order: str
    seconds: float
    def __init__(self, order: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class MeasureMachineResponse(_message.Message):
    __slots__ = ("read_bytes_per_second", "layouts")
    READ_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LAYOUTS_FIELD_NUMBER: _ClassVar[int]
    read_bytes_per_second: float
    layouts: _containers.RepeatedCompositeFieldContainer[LayoutTime]
    def __init__(self, read_bytes_per_second: _Optional[float] = ..., layouts: _Optional[_Iterable[_Union[LayoutTime, _Mapping]]] = ...) -> None: ...

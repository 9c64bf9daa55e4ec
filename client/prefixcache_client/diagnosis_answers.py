"""What a worker tells of its inside: from proto messages to immutable Python values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from prefixcache.v1 import diagnosis_pb2
from prefixcache_client.fields import from_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """All that makes two measurements comparable."""

    settings: Mapping[str, str]
    """By flag without the dashes; a setting that was not given and has no default is missing."""
    machine: Mapping[str, str]
    """What the worker runs on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlace:
    """One tensor of the KV pool. Sizes and strides are by layer, slot, head and element."""

    name: str
    dtype: str
    size: tuple[int, ...]
    """Elements."""
    strides: tuple[int, ...]
    """Bytes between neighbours."""
    address: int
    """Of its first element."""
    element_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLayout:
    """Where keys and values lie in memory."""

    order: str
    """"layer-first" or "head-first"."""
    tensors: tuple[TensorPlace, ...]
    attention: str
    """The backend that reads them."""
    token_bytes: int
    """Of keys, values and scales that one token has in all layers."""


class StepFault(StrEnum):
    """What kind of rule a step has broken."""

    UNKNOWN = "unknown"
    """A kind that this client is too old to know."""
    START = "start"
    """A sequence's rows were written at another place than behind its last row."""
    ROWS_READ_MORE = "rows_read_more"
    """More rows were read than the sequence has."""
    ROWS_READ_LESS = "rows_read_less"
    """Fewer rows were read than the sequence has."""
    FOREIGN_ROWS = "foreign_rows"
    """Rows of another sequence, or of a block that the sequence does not hold, were read or written."""
    OVERLAP = "overlap"
    """Two sequences wrote to one slot, or one wrote to a block that others hold."""
    BORDER = "border"
    """No rows, more rows than the blocks have room for, or more tokens than the context."""
    COUNTS = "counts"
    """Counts of blocks, requests or references do not add up."""
    COPY = "copy"
    """A block that was copied on write is not the same as what it was copied from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinding:
    """One broken rule."""

    fault: StepFault
    request_id: str
    """The request that it concerns; empty when it is not one."""
    expected: int
    found: int
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One engine step. Rows are rows of one layer."""

    number: int
    """Counts from 1 in each stream; jumps only by `num_lost`."""
    num_sequences: int
    num_tokens: int
    num_prompt_tokens: int
    rows_needed: int
    """A shared run once: the best that can be."""
    rows_read: int
    rows_unshared: int
    longest: int
    """Rows of the longest sequence."""
    num_block_copies: int
    seconds: float
    plan_seconds: float
    """Choosing the sequences and planning what they read."""
    model_seconds: float
    live_blocks: int
    """After the step."""
    findings: tuple[StepFinding, ...]
    """Nothing, where all is well; at most 20."""
    num_lost: int
    """Steps directly before this one that this client was too slow for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexCheck:
    """What a proof of every invariant came to."""

    findings: tuple[str, ...]
    """What is wrong: nothing, where all is well."""
    num_nodes: int
    num_blocks: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledOperation:
    """All calls of one operation."""

    name: str
    count: int
    seconds: float
    """In it, without what it called."""
    copied_bytes: int
    """That it wrote, where it only copies or fills."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfile:
    """What torch's profiler saw, over all recorded steps."""

    num_steps: int
    num_tokens: int
    seconds: float
    num_copies: int
    """Operations that copy or fill memory."""
    copied_bytes: int
    """Bytes that these wrote."""
    filled_bytes: int
    """Of `copied_bytes`, those of operations that only fill."""
    attention_seconds: float
    product_seconds: float
    copy_seconds: float
    kv_bytes: int
    """Keys and values that attention had to read, by the lengths of the sequences."""
    weight_bytes: int
    """Weights that the steps had to read."""
    operations: tuple[ProfiledOperation, ...]
    """Those that took longest, longest first; at most 20."""


class ProfiledSteps(NamedTuple):
    """A profile, and the trace that it was made of."""

    profile: StepProfile
    trace: bytes
    """A gzip-compressed file for chrome://tracing or ui.perfetto.dev; empty unless asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutTime:
    """How fast attention is over one layout of the pool."""

    order: str
    """"layer-first" or "head-first"."""
    seconds: float
    """One decode step's attention in one layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpeed:
    """What the worker's machine can do."""

    read_bytes_per_second: float
    """From memory, by all threads together."""
    layouts: tuple[LayoutTime, ...]


def settings_from_proto(response: diagnosis_pb2.GetSettingsResponse) -> WorkerSettings:
    """The settings."""
    return WorkerSettings(settings=dict(response.settings), machine=dict(response.machine))


def layout_from_proto(response: diagnosis_pb2.GetLayoutResponse) -> PoolLayout:
    """The layout."""
    tensors = tuple(
        from_fields(TensorPlace, tensor, size=tuple(tensor.size), strides=tuple(tensor.strides))
        for tensor in response.tensors
    )
    return from_fields(PoolLayout, response, tensors=tensors)


def step_from_proto(response: diagnosis_pb2.WatchStepsResponse) -> StepRecord:
    """One step."""
    findings = tuple(
        from_fields(StepFinding, finding, fault=_FAULTS.get(finding.fault, StepFault.UNKNOWN))
        for finding in response.findings
    )
    return from_fields(StepRecord, response, findings=findings)


def index_check_from_proto(response: diagnosis_pb2.CheckIndexesResponse) -> IndexCheck:
    """The result of a check."""
    return from_fields(IndexCheck, response, findings=tuple(response.findings))


def profiled_steps_from_proto(responses: Iterable[diagnosis_pb2.ProfileStepsResponse]) -> ProfiledSteps:
    """All messages of one call, put together."""
    first, *others = responses
    operations = tuple(from_fields(ProfiledOperation, each) for each in first.profile.operations)
    profile = from_fields(StepProfile, first.profile, operations=operations)
    return ProfiledSteps(profile, b"".join(part.trace for part in others))


def machine_speed_from_proto(response: diagnosis_pb2.MeasureMachineResponse) -> MachineSpeed:
    """What was measured."""
    layouts = tuple(from_fields(LayoutTime, layout) for layout in response.layouts)
    return from_fields(MachineSpeed, response, layouts=layouts)


_FAULTS = {
    diagnosis_pb2.StepFault.Value(f"STEP_FAULT_{fault.name}"): fault
    for fault in StepFault
    if fault is not StepFault.UNKNOWN
}

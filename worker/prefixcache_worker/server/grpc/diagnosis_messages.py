"""What a diagnosis finds, as messages."""

from __future__ import annotations

from dataclasses import asdict

from prefixcache.v1 import diagnosis_pb2
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.diagnosis.machine_speed import MachineSpeed
from prefixcache_worker.diagnosis.step_feed import NumberedStep
from prefixcache_worker.diagnosis.step_profiler import StepProfile
from prefixcache_worker.diagnosis.step_record import StepFault

_FAULTS = {
    StepFault.START: diagnosis_pb2.STEP_FAULT_START,
    StepFault.ROWS_READ_MORE: diagnosis_pb2.STEP_FAULT_ROWS_READ_MORE,
    StepFault.ROWS_READ_LESS: diagnosis_pb2.STEP_FAULT_ROWS_READ_LESS,
    StepFault.FOREIGN_ROWS: diagnosis_pb2.STEP_FAULT_FOREIGN_ROWS,
    StepFault.OVERLAP: diagnosis_pb2.STEP_FAULT_OVERLAP,
    StepFault.BORDER: diagnosis_pb2.STEP_FAULT_BORDER,
    StepFault.COUNTS: diagnosis_pb2.STEP_FAULT_COUNTS,
    StepFault.COPY: diagnosis_pb2.STEP_FAULT_COPY,
}


def step_to_proto(step: NumberedStep) -> diagnosis_pb2.WatchStepsResponse:
    """The message of one step."""
    record = step.record
    return diagnosis_pb2.WatchStepsResponse(
        number=step.number,
        num_sequences=record.num_sequences,
        num_tokens=record.num_tokens,
        num_prompt_tokens=record.num_prompt_tokens,
        rows_needed=record.rows_needed,
        rows_read=record.rows_read,
        rows_unshared=record.rows_unshared,
        longest=record.longest,
        num_block_copies=record.num_block_copies,
        seconds=record.seconds,
        plan_seconds=record.plan_seconds,
        model_seconds=record.model_seconds,
        live_blocks=record.live_blocks,
        findings=[
            diagnosis_pb2.StepFinding(
                fault=_FAULTS[finding.fault],
                request_id=finding.request_id,
                expected=finding.expected,
                found=finding.found,
                sentence=finding.sentence,
            )
            for finding in record.findings
        ],
        num_lost=step.num_lost,
    )


def layout_to_proto(store: KvStore, attention: str) -> diagnosis_pb2.GetLayoutResponse:
    """The map of a pool, and the name of the backend that reads it."""
    return diagnosis_pb2.GetLayoutResponse(
        order=store.layout.order.value,
        tensors=[
            diagnosis_pb2.TensorPlace(
                name=place.name.removesuffix(".rows"),
                dtype=str(place.dtype).removeprefix("torch."),
                size=place.size,
                strides=place.strides,
                address=tensor.data_ptr(),
                element_bytes=place.dtype.itemsize,
            )
            for place, tensor in zip(store.places(), store.tensors(), strict=True)
        ],
        attention=attention,
        token_bytes=store.record_bytes // store.block_size,
    )


def profile_to_proto(profile: StepProfile) -> diagnosis_pb2.StepProfile:
    """The figures of a profile."""
    figures = profile.figures
    return diagnosis_pb2.StepProfile(
        num_steps=profile.num_steps,
        num_tokens=profile.num_tokens,
        seconds=figures.seconds,
        num_copies=figures.num_copies,
        copied_bytes=figures.copied_bytes,
        filled_bytes=figures.filled_bytes,
        attention_seconds=figures.attention_seconds,
        product_seconds=figures.product_seconds,
        copy_seconds=figures.copy_seconds,
        kv_bytes=profile.kv_bytes,
        weight_bytes=profile.weight_bytes,
        operations=[diagnosis_pb2.ProfiledOperation(**asdict(operation)) for operation in figures.operations],
    )


def speed_to_proto(speed: MachineSpeed) -> diagnosis_pb2.MeasureMachineResponse:
    """What was measured."""
    return diagnosis_pb2.MeasureMachineResponse(
        read_bytes_per_second=speed.read_bytes_per_second,
        layouts=[
            diagnosis_pb2.LayoutTime(order=order.value, seconds=seconds)
            for order, seconds in speed.seconds_of_layout.items()
        ],
    )

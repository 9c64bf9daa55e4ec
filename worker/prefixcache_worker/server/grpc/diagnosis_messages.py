"""What a diagnosis finds, as messages."""

from __future__ import annotations

from prefixcache.v1 import diagnosis_pb2
from prefixcache_worker.diagnosis.step_feed import NumberedStep
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

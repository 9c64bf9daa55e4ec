"""A hand-stepped engine whose every step is audited."""

from __future__ import annotations

from support.hand_engine import HandEngine

from prefixcache_worker.diagnosis.step_audit import StepAudit
from prefixcache_worker.diagnosis.step_record import StepFault, StepFinding, StepRecord


class AuditedEngine:
    """The engine, and what the audit says of its steps."""

    def __init__(self, hand: HandEngine) -> None:
        self.hand = hand
        self.records: list[StepRecord] = []
        self.audit = StepAudit(hand.engine, self.records.append)
        self.audit.start()

    @property
    def findings(self) -> list[StepFinding]:
        return [finding for record in self.records for finding in record.findings]

    @property
    def faults(self) -> set[StepFault]:
        return {finding.fault for finding in self.findings}

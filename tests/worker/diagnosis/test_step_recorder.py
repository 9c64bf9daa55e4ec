"""The profiler records the steps that were asked for; what they copy does not grow on a healthy engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.delegating_model import DelegatingModel
from support.hand_engine import HandEngine, reference_model, stream

from prefixcache_worker.diagnosis.step_recorder import StepRecorder
from prefixcache_worker.diagnosis.trace import read_trace
from prefixcache_worker.diagnosis.trace_figures import TraceFigures, figures_of
from prefixcache_worker.model.model import ForwardBatch, StepAttention


class Recording:
    """A recorder of so many steps of a hand-stepped engine."""

    def __init__(self, hand: HandEngine, num_steps: int) -> None:
        self.num_done = 0
        self.recorder = StepRecorder(hand.engine, num_steps, self._done)
        self.recorder.start()

    def _done(self) -> None:
        self.num_done += 1

    def figures(self, folder: Path) -> TraceFigures:
        assert self.recorder.profiler is not None
        path = folder / "trace.json.gz"
        self.recorder.profiler.export_chrome_trace(str(path))
        return figures_of(read_trace(path))


@pytest.mark.parametrize("backend", ["torch", "auto"])
def test_the_steps_that_were_asked_for_are_recorded(backend: str, tmp_path: Path) -> None:
    hand = HandEngine(backend=backend)
    hand.add(stream("a", 40), 30)
    recording = Recording(hand, 3)
    hand.run()
    recorder = recording.recorder
    assert recording.num_done == 1
    assert (recorder.num_steps, recorder.num_tokens) == (3, 42)
    assert recorder.kv_bytes == (40 + 41 + 42) * 2 * 2 * 2 * 16 * 4  # K and V, layers, heads, elements, bytes
    figures = recording.figures(tmp_path)
    counts = {each.name: each.count for each in figures.operations}
    assert counts["prefixcache::step"] == 3
    assert counts["prefixcache::attention"] == 3 * 2
    assert 0 < figures.attention_seconds < figures.seconds
    assert 0 < figures.product_seconds < figures.seconds
    assert figures.num_copies > 0


class CopyingModel(DelegatingModel):
    """Copies as many numbers as its token has rows before it, as a cache does that grows by concatenation."""

    def forward(self, batch: ForwardBatch, attention: StepAttention) -> torch.Tensor:
        torch.zeros(int(batch.positions[-1]) * 1000).clone()
        return super().forward(batch, attention)


def copied_at(model: DelegatingModel, num_prompt_tokens: int, folder: Path) -> int:
    hand = HandEngine(model=model, backend="auto", num_blocks=80)
    hand.add(stream("a", num_prompt_tokens), 30)
    hand.step()
    recording = Recording(hand, 4)
    hand.run()
    return recording.figures(folder).copied_bytes


def test_a_copy_that_grows_stands_out(tmp_path: Path) -> None:
    """A healthy step copies the same at row 400 as at row 20, but for what merges a few partial results."""
    near, far = (copied_at(DelegatingModel(reference_model()), rows, tmp_path) for rows in (20, 400))
    assert near > 0
    assert far - near < 4 * 400  # less than a number per row, of which each has 128 in the pool
    near, far = (copied_at(CopyingModel(reference_model()), rows, tmp_path) for rows in (20, 400))
    assert far - near > 4 * 380 * 1000 * 4


def test_a_recording_that_is_given_up_leaves_nothing_behind(tmp_path: Path) -> None:
    hand = HandEngine()
    hand.add(stream("a", 40), 30)
    recording = Recording(hand, 100)
    for _ in range(2):
        hand.step()
    recording.recorder.stop()
    recording.recorder.stop()
    hand.run()
    assert (recording.num_done, recording.recorder.num_steps) == (0, 2)
    assert not torch._C._autograd._profiler_enabled()


def test_a_recording_that_is_given_up_before_any_step_has_nothing() -> None:
    hand = HandEngine()
    recording = Recording(hand, 5)
    recording.recorder.stop()
    assert recording.recorder.profiler is None


def test_a_recorder_that_fails_says_so() -> None:
    hand = HandEngine()
    hand.add(stream("a", 40), 5)
    recording = Recording(hand, 100)
    recording.recorder.chosen = lambda spans: 1 / 0  # type: ignore[method-assign]
    hand.run()
    assert (recording.num_done, recording.recorder.has_failed) == (1, True)
    assert not torch._C._autograd._profiler_enabled()

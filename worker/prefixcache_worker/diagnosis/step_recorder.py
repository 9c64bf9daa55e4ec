"""Records some steps with torch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from torch.profiler import ProfilerActivity, profile

from prefixcache_worker.diagnosis.step_truth import SequenceTruth, StepTruth
from prefixcache_worker.engine.batch import Batch, ScheduledSpan
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.profiler_range import STEP, profiler_range


class StepRecorder:
    """A `StepWatcher` that has the profiler record the next steps that run anything, and then stops it.

    Use on the engine's thread: torch's profiler records the thread that starts it.
    """

    def __init__(self, engine: Engine, num_steps: int, done: Callable[[], None]) -> None:
        """`done` is called once, when all is recorded, or the recorder has failed."""
        self._engine = engine
        self._num_wanted = num_steps
        self._done = done
        self._is_recording = False
        self._step = ExitStack()
        """The range of the step that runs."""
        self.profiler: profile | None = None
        self._truth: StepTruth | None = None
        self.has_failed = False
        self.num_steps = 0
        """Recorded until now."""
        self.num_tokens = 0
        self._rows_needed = 0.0

    @property
    def kv_bytes(self) -> int:
        """Keys and values that the steps had to read, in all layers, a shared row once."""
        store = self._engine.kv_store
        return round(self._rows_needed * store.record_bytes / store.block_size)

    def start(self) -> None:
        """Record from the next step on."""
        self._engine.watchers.add(self)

    def stop(self) -> None:
        """Record no more; a no-op the second time. Whatever was recorded is in `profiler`."""
        self._engine.watchers.remove(self)
        if self._is_recording:
            self._is_recording = False
            self._step.close()
            assert self.profiler is not None
            self.profiler.stop()

    def begun(self) -> None:
        if not self._is_recording:
            activities = [ProfilerActivity.CPU]
            if self._engine.kv_store.device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
            self.profiler = profile(activities=activities, record_shapes=True)
            self.profiler.start()
            self._is_recording = True
        self._truth = None
        self._step.enter_context(profiler_range(STEP))

    def chosen(self, spans: Sequence[ScheduledSpan]) -> None:
        self._truth = StepTruth(
            [SequenceTruth.of(span) for span in spans],
            self._engine.kv_store.layout.shape,
            self._engine.cache.block_size,
            self._engine.config.approximation.sparse_reads,
        )

    def prepared(self, batch: Batch) -> None:
        pass

    def computed(self) -> None:
        pass

    def ended(self) -> None:
        self._step.close()
        if self._truth is None:
            return
        self.num_steps += 1
        self.num_tokens += self._truth.num_tokens
        self._rows_needed += self._truth.rows_needed
        if self.num_steps == self._num_wanted:
            self.stop()
            self._done()

    def dropped(self) -> None:
        self.has_failed = True
        self.stop()
        self._done()

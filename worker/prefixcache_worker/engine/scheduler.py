"""Decides which tokens run in the next step, and who gives way when blocks run out."""

from __future__ import annotations

from itertools import chain, count
from typing import Any, NamedTuple

from prefixcache import NotPublisherError, OutOfBlocksError, QuotaExceededError
from prefixcache_worker.engine.batch import ScheduledSpan
from prefixcache_worker.engine.cache_scheme import CacheScheme, SequenceHandle
from prefixcache_worker.engine.sequence import Sequence
from prefixcache_worker.engine.single_flight import RunningPrefills, find_flight
from prefixcache_worker.engine.tenant_service import TenantService
from prefixcache_worker.engine.victims import Room, choose_victims
from prefixcache_worker.engine.waiting_queue import WaitingQueue

PREFILL_PART = 4
"""One part in so many of a step is kept for prompts as long as there are any."""

RefusalError = OutOfBlocksError | QuotaExceededError | NotPublisherError


class Refusal(NamedTuple):
    """A sequence that can't go on although nobody is left to give way to it. The scheduler has dropped it."""

    sequence: Sequence
    error: RefusalError


class Schedule(NamedTuple):
    """What comes of one step's decisions."""

    spans: list[ScheduledSpan]
    refusals: list[Refusal]


class Scheduler:
    """Owns the queues; every sequence it knows is in exactly one of them.

    A step serves answers first, one token each, and then prompts in chunks: those that are being
    computed and those that wait, in the order of `WaitingQueue`. So a prompt, however long, costs an
    answer at most the time of one step, and answers never take a whole step from the prompts.

    When blocks run out, the youngest of the lowest priority gives way: its rows stay in the tree, it
    waits at the place of its age and goes on with what is still cached. A waiting sequence takes the
    room of running ones only if their priority is lower, and at a tenant's ceiling only of its own.
    Where nobody is left to give way, the sequence is refused.

    A paused sequence gets no tokens. It keeps its slot and its blocks until anybody needs them: before all
    others it gives way, to sequences that wait too, whatever its priority.

    A waiting prompt that is about to be in the tree, because a running one that begins the same is
    just being prefilled, waits for it: one computation serves both (single flight).

    Invariants, proved by `check`: running sequences hold a handle, waiting ones none;
    `num_running <= max_running`, counting the choices that will fork.
    """

    def __init__(
        self, cache: CacheScheme[Any], *, max_batch_tokens: int, max_running: int, max_overtakes: int
    ) -> None:
        self._cache = cache
        self._max_batch_tokens = max_batch_tokens
        self._max_running = max_running
        self._service = TenantService()
        self._arrivals = count(1)
        self._num_steps = 0
        self.waiting = WaitingQueue(cache, self._service, max_overtakes=max_overtakes)
        self.running: list[Sequence] = []  # in order of admission
        self._prefills = RunningPrefills()
        self.num_preemptions = 0
        self._new_prompts: list[tuple[Sequence, int]] = []
        """Prompts that the last step has computed to their ends, and how much of each was cached before."""

    @property
    def num_running(self) -> int:
        """Sequences that run, with the choices that will split off from them."""
        forking = [sequence for sequence in self.running if sequence.request.num_choices > 1]
        return len(self.running) + sum(sequence.num_choices_to_fork for sequence in forking)

    def add(self, sequence: Sequence) -> None:
        """Let a new sequence wait."""
        sequence.arrival = next(self._arrivals)
        self.waiting.add(sequence)

    def add_fork(self, parent: Sequence, sequence: Sequence) -> None:
        """Let a choice run that continues on its parent's blocks, or on a copy where nothing is shared.

        When there is no room for a copy, the choice waits like one that was preempted.
        """
        sequence.arrival = parent.arrival
        sequence.num_overtakes = parent.num_overtakes
        sequence.is_overdue = parent.is_overdue
        sequence.last_step = parent.last_step
        try:
            sequence.handle = self._cache.fork(parent.running_handle)
        except OutOfBlocksError:
            sequence.is_resumed = True
            self.waiting.add(sequence)
            return
        sequence.num_computed_tokens = parent.num_computed_tokens
        self.running.append(sequence)

    def schedule(self) -> Schedule:
        """The tokens of the next step, at most `max_batch_tokens`, with room for all of them.

        Empty only when all that waits or runs is paused. O(running + waiting tenants), and for each
        admission O(waiting) and what `WaitingQueue.first`, `find_flight` and `acquire` take.
        """
        step = _Step(self._max_batch_tokens)
        self._num_steps += 1
        self.waiting.unpark_ended()
        self._prefills.discard_computed()
        for sequence, num_cached_tokens in self._new_prompts:
            self.waiting.expect_more_cached(sequence, num_cached_tokens)
        self._new_prompts.clear()
        decodes = [s for s in self.running if s.num_uncomputed_tokens == 1 and not s.is_paused]
        num_first = self._max_batch_tokens
        if len(decodes) < len(self.running) or self.waiting:
            num_first -= num_first // PREFILL_PART
        if len(decodes) > num_first:
            decodes.sort(key=lambda sequence: sequence.last_step)
        self._decode(decodes[:num_first], step)
        self._prefill(step)
        self._decode(decodes[num_first:], step)
        for sequence in step.num_tokens:
            sequence.last_step = self._num_steps
        spans = [ScheduledSpan(sequence, num_tokens) for sequence, num_tokens in step.num_tokens.items()]
        is_busy = spans or step.refusals
        assert is_busy or all(s.is_paused for s in (*self.waiting, *self.running)), "work, but nothing to run"
        return Schedule(spans, step.refusals)

    def preempt(self, sequence: Sequence) -> None:
        """Let a running sequence wait again, at the place of its age; its written rows stay cached."""
        self._give_back(sequence)
        sequence.is_resumed = True
        self.waiting.add(sequence)
        self.num_preemptions += 1

    def pause(self, sequence: Sequence) -> None:
        """Give it no tokens until `resume`. O(log waiting)."""
        self._set_paused(sequence, True)

    def resume(self, sequence: Sequence) -> None:
        """Let it go on where it stands, or wait for its turn if it had to give way. O(log waiting)."""
        self._set_paused(sequence, False)

    def retire(self, sequence: Sequence) -> None:
        """Take a sequence out for whatever reason: publish what is really written, release the handle."""
        if sequence.handle is None:
            self.waiting.remove(sequence)
        else:
            self._give_back(sequence)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken. For tests."""
        assert all(sequence.handle is None for sequence in self.waiting)
        assert all(sequence.handle is not None for sequence in self.running)
        assert self.num_running <= self._max_running
        self.waiting.check()
        self._prefills.check(self.running)
        for sequence in [*self.waiting, *self.running]:
            sequence.check()

    def _set_paused(self, sequence: Sequence, is_paused: bool) -> None:
        is_waiting = sequence.handle is None
        if is_waiting:
            self.waiting.remove(sequence)
        sequence.is_paused = is_paused
        if is_waiting:
            self.waiting.add(sequence)

    def _give_back(self, sequence: Sequence) -> None:
        handle = sequence.running_handle
        if not handle.copies:  # else the rows that they were to bring are not there
            sequence.num_written_tokens += self._cache.publish(
                handle, sequence.num_publishable_tokens, include_tail=True
            )
        self._cache.release(handle)
        sequence.handle = None
        sequence.num_computed_tokens = 0
        sequence.num_exact_tokens = None
        self.running.remove(sequence)
        self._prefills.discard(sequence)

    def _decode(self, sequences: list[Sequence], step: _Step) -> None:
        """Give each the token it is at, as long as there are any."""
        for sequence in sequences:
            if step.num_left == 0:
                return
            if step.may_have(sequence) and self._make_room(sequence, step):
                step.give(sequence, 1)
                self._service.charge(sequence.tenant, 1)

    def _prefill(self, step: _Step) -> None:
        """Give what is left to prompts, running and waiting, in the order of their claims."""
        claim = self.waiting.claim
        prefills = [s for s in self.running if s.num_uncomputed_tokens > 1 and not s.is_paused]
        prefills.sort(key=claim, reverse=True)
        is_full = len(self.running) >= self._max_running and not any(s.is_paused for s in self.running)
        is_admitting = not is_full or self.waiting.may_outrank(self.running)
        while step.num_left:
            while prefills and not step.may_have(prefills[-1]):
                prefills.pop()
            waiting = self.waiting.first(step.blocked_tenants) if is_admitting else None
            if waiting is not None and not (prefills and claim(prefills[-1]) <= claim(waiting)):
                is_admitting = self._admit(waiting, step)
            elif prefills:
                self._compute(prefills.pop(), step)
            else:
                return

    def _compute(self, sequence: Sequence, step: _Step) -> None:
        """Give a prompt as much of the step as is left and it needs."""
        num_tokens = min(sequence.num_uncomputed_tokens, step.num_left)
        step.give(sequence, num_tokens)
        self._service.charge(sequence.tenant, num_tokens)
        if num_tokens == sequence.num_uncomputed_tokens:
            self._new_prompts.append((sequence, sequence.running_handle.num_cached_tokens))

    def _make_room(self, sequence: Sequence, step: _Step) -> bool:
        """Extend the handle to the sequence's last token; False if the sequence itself had to give way."""
        handle = sequence.running_handle
        while handle.num_tokens < sequence.num_tokens:
            try:
                self._cache.extend(handle, sequence.token_ids[handle.num_tokens :])
            except (OutOfBlocksError, QuotaExceededError) as error:
                rivals = self._rivals(sequence, error)
                if rivals == [sequence]:
                    self._give_back(sequence)
                    step.refusals.append(Refusal(sequence, error))
                    return False
                victim = min(rivals, key=_standing)
                self._preempt_in_step(victim, step)
                if victim is sequence:
                    return False
        return True

    def _admit(self, sequence: Sequence, step: _Step) -> bool:
        """Let the first of the queue run, park or refuse it; False if it has to stay, and all behind it."""
        flight = find_flight(self._cache, sequence, self._prefills)
        if flight is not None and not sequence.is_overdue:
            self.waiting.park(sequence, flight)
            return True
        if flight is not None:
            return False  # if it is overdue, nobody may overtake it while it waits for the prefill
        try:
            handle = self._acquire(sequence, step)
        except (OutOfBlocksError, QuotaExceededError, NotPublisherError) as error:
            if all(rival.is_paused for rival in self._rivals(sequence, error)):  # and all of it is too little
                self.waiting.remove(sequence)
                step.refusals.append(Refusal(sequence, error))
            elif isinstance(error, QuotaExceededError):
                step.blocked_tenants.add(sequence.tenant)
            else:
                return False
            return True
        if handle is None:
            return False
        self.waiting.remove(sequence)
        sequence.handle = handle
        sequence.num_computed_tokens = handle.num_cached_tokens
        self._count_overtakes(sequence)
        self.running.append(sequence)
        self._prefills.add(sequence)
        self._compute(sequence, step)
        return True

    def _count_overtakes(self, sequence: Sequence) -> None:
        """Count those that came before the sequence and have not got as far."""
        arrival = sequence.arrival
        earlier = [other for other in chain(self.waiting, self.running) if other.arrival < arrival]
        for other in earlier:
            if not other.is_paused and (other.handle is None or other.num_uncomputed_tokens > 1):
                self.waiting.count_overtake(other)

    def _acquire(self, sequence: Sequence, step: _Step) -> SequenceHandle | None:
        """Take blocks for all its tokens and slots for it and its choices, if need be from less urgent ones.

        None without slots; raises as the cache does. Who gives way is chosen for both before anybody does.
        """
        request = sequence.request
        while True:
            victims = self._choose_victims(sequence)
            if victims is None:
                return None
            handle: SequenceHandle | None = None
            try:
                handle = self._cache.acquire(
                    sequence.cache_tokens,
                    request.namespace,
                    num_public_tokens=request.num_public_tokens,
                    use_cache=request.use_cache,
                    max_cached_tokens=sequence.max_cached_tokens,
                    priority=request.cache_priority,
                    priority_seconds=request.cache_priority_seconds,
                    is_resumed=sequence.is_resumed,
                )
            except (OutOfBlocksError, QuotaExceededError) as error:
                victims = self._choose_victims(sequence, error)
                if victims is None:
                    raise
            for victim in victims:
                self._preempt_in_step(victim, step)
            if handle is not None:
                return handle

    def _choose_victims(
        self, sequence: Sequence, error: OutOfBlocksError | QuotaExceededError | None = None
    ) -> list[Sequence] | None:
        """Who gives way for the slots it needs and the blocks that were missing; None if that is not enough.

        Looks at no floors: what is left to a tenant that is below its own may still not be had.
        """
        if error is None:
            room, num_blocks = Room(self._cache), 0
        else:
            tenant = sequence.tenant if isinstance(error, QuotaExceededError) else None
            room = Room(self._cache, sequence.match_in(self._cache).block_ids, tenant)
            num_blocks = error.num_missing
        return choose_victims(
            sorted(_less_urgent(self.running, sequence), key=_standing),
            room,
            num_slots=self.num_running + 1 + sequence.num_choices_to_fork - self._max_running,
            num_blocks=num_blocks,
        )

    def _rivals(self, sequence: Sequence, error: RefusalError) -> list[Sequence]:
        """Running sequences whose blocks would do: all, or at a ceiling those of the same tenant."""
        match error:
            case OutOfBlocksError():
                return self.running
            case QuotaExceededError():
                return [other for other in self.running if other.tenant == sequence.tenant]
            case NotPublisherError():
                return []

    def _preempt_in_step(self, sequence: Sequence, step: _Step) -> None:
        """Preempt, and take back what the sequence had been given in this step."""
        self._service.charge(sequence.tenant, -step.take_back(sequence))
        self.preempt(sequence)


class _Step:
    """What has been given away of one step so far."""

    def __init__(self, num_tokens: int) -> None:
        self.num_left = num_tokens
        self.num_tokens: dict[Sequence, int] = {}
        self.blocked_tenants: set[str] = set()
        """Those that can have no more blocks as long as what they run goes on."""
        self.refusals: list[Refusal] = []

    def may_have(self, sequence: Sequence) -> bool:
        """Whether it still runs, and has got nothing: one that gave way may be back, with its share."""
        return sequence.handle is not None and sequence not in self.num_tokens

    def give(self, sequence: Sequence, num_tokens: int) -> None:
        """Give it so many of what is left."""
        assert sequence not in self.num_tokens, "two shares of a step"
        self.num_tokens[sequence] = num_tokens
        self.num_left -= num_tokens

    def take_back(self, sequence: Sequence) -> int:
        """What it was given, which others may have now."""
        num_tokens = self.num_tokens.pop(sequence, 0)
        self.num_left += num_tokens
        return num_tokens


def _standing(sequence: Sequence) -> tuple[bool, bool, int, int, int]:
    """Who gives way: the lowest, that is the youngest of the lowest priority; paused ones first, those
    overdue last."""
    is_going_on = not sequence.is_paused
    return (is_going_on, sequence.is_overdue, sequence.priority, -sequence.arrival, -sequence.index)


def _less_urgent(running: list[Sequence], sequence: Sequence) -> list[Sequence]:
    return [
        other
        for other in running
        if other.is_paused or (other.priority < sequence.priority and not other.is_overdue)
    ]

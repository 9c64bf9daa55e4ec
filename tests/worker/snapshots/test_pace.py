"""How fast a save goes, and when it gives up."""

from __future__ import annotations

import threading
import time

import pytest

from prefixcache_worker.snapshots.pace import Pace, SaveAbandonedError

FAR = 1e9


def test_an_idle_engine_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time, "monotonic", iter(range(100)).__next__)
    monkeypatch.setattr(threading.Event, "wait", lambda *_: pytest.fail("waited"))
    pace = Pace(lambda: False)
    pace()
    pace()


def test_beside_a_busy_engine_a_quarter_of_the_time_is_worked(monkeypatch: pytest.MonkeyPatch):
    waits: list[float] = []
    monkeypatch.setattr(threading.Event, "wait", lambda self, seconds: waits.append(seconds))
    #                                           made, worked 1 s, waited to 4, worked 2 s, waited to 12
    monkeypatch.setattr(time, "monotonic", iter([0.0, 1.0, 4.0, 6.0, 12.0]).__next__)
    pace = Pace(lambda: True)
    pace()
    pace()
    assert waits == [3.0, 6.0]


def test_in_a_hurry_nothing_waits_and_the_deadline_ends_it(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pace = Pace(lambda: True)
    now[0] = FAR  # would be a wait without end
    pace.hurry(FAR + 10)
    pace()
    now[0] = FAR + 10.5
    with pytest.raises(SaveAbandonedError):
        pace()


def test_a_wait_ends_when_somebody_is_in_a_hurry():
    pace = Pace(lambda: True)
    pace._resumed -= FAR
    waiting = threading.Thread(target=pace, daemon=True)
    waiting.start()
    pace.hurry(time.monotonic() + FAR)
    waiting.join(10)
    assert not waiting.is_alive()

"""When the credit is switched on and off."""

from hypothesis import given
from hypothesis import strategies as st

from prefixcache.credit_guard import CreditGuard


def guard(least_lead: float = 0) -> CreditGuard:
    return CreditGuard(300, least_lead=least_lead)


def observe(watched: CreditGuard, differences: list[int], first_tick: int = 1) -> list[int]:
    """Ticks at which it switched."""
    return [
        tick for tick, difference in enumerate(differences, first_tick) if watched.observe(tick, difference)
    ]


def test_it_leaves_lru_at_three_standard_deviations() -> None:
    """Of n gains of 1, the sum is n and the deviation sqrt(n): beyond 3 of these from the tenth on."""
    watched = guard()
    assert observe(watched, [1] * 10) == [10]
    assert watched.credit_ticks == 300


def test_it_returns_at_two() -> None:
    watched = guard()
    observe(watched, [1] * 10)
    assert observe(watched, [-1] * 5, first_tick=11) == [15]
    assert watched.credit_ticks == 0


def test_losses_start_the_lead_anew() -> None:
    watched = guard()
    assert not observe(watched, [1, 1, -5] * 100)
    assert observe(watched, [1] * 10, first_tick=301) == [310]


def test_a_lead_has_to_be_worth_a_switch() -> None:
    assert observe(guard(least_lead=50), [1] * 51) == [51]


def test_one_large_difference_proves_nothing() -> None:
    assert not observe(guard(), [1_000, 0, 0, 900])


def test_requests_that_make_no_difference_change_nothing() -> None:
    watched, same = guard(), guard()
    observe(watched, [1, 0, 0, 2, 0])
    observe(same, [1, 2])
    assert watched._lead == same._lead == 3
    assert watched._squares == same._squares


def test_the_reason_tells_the_lead_and_since_when() -> None:
    watched = guard()
    observe(watched, [3, -4, *[2] * 10])
    (switch,) = watched.switches
    assert switch.tick == 12
    assert switch.credit_ticks == 300
    assert switch.reason == (
        "credit had 20 hits more than lru on the sample since request 2, which is 3.2 standard deviations"
    )


def test_the_latest_switches_are_kept() -> None:
    watched = guard()
    for number in range(20):
        observe(watched, [-1 if watched.credit_ticks else 1] * 10, first_tick=10 * number + 1)
    assert len(watched.switches) == 16
    ticks = [switch.tick for switch in watched.switches]
    assert ticks == sorted(ticks)
    assert ticks[-1] > 190


@given(st.lists(st.integers(-20, 20), max_size=300))
def test_the_one_in_force_is_never_behind_by_more_than_what_switches(differences: list[int]) -> None:
    watched = guard()
    for tick, difference in enumerate(differences):
        was = watched.credit_ticks
        assert watched.observe(tick, difference) == (watched.credit_ticks != was)
        assert watched._lead <= (2 if watched.credit_ticks else 3) * watched._squares**0.5
        assert watched._lead >= 0

"""The proof of every invariant says what does not hold, and where; it never raises."""

from __future__ import annotations

from support.hand_engine import HandEngine, stream

from prefixcache_worker.diagnosis.index_check import check_indexes


def used_engine() -> HandEngine:
    """One that has a tree of two branches, and a request that runs."""
    hand = HandEngine(block_size=8)
    hand.generate(stream("a", 30) + stream("b", 9))
    hand.generate(stream("a", 30) + stream("c", 9))
    hand.add(stream("d", 20), 9)
    hand.step()
    return hand


def test_a_healthy_engine_has_no_findings() -> None:
    hand = used_engine()
    check = check_indexes(hand.engine)
    assert check.findings == ()
    assert (check.num_nodes, check.num_blocks) == (hand.cache.stats().num_nodes, 64)
    assert check.num_nodes >= 3
    assert check.seconds > 0


def test_a_reference_that_nobody_holds_is_named() -> None:
    hand = used_engine()
    (block_id, *_) = hand.cache.dump()[0].block_ids
    hand.cache._pool.retain([block_id])
    findings = check_indexes(hand.engine).findings
    assert findings[0].startswith(
        "1 blocks have another number of references than of holders: the first is block "
        f"{block_id}, with 2 references and 1 holders (audit.py, line "
    )


def test_a_queue_that_lost_a_sequence_is_found() -> None:
    hand = used_engine()
    hand.engine._scheduler.running.clear()
    (finding,) = check_indexes(hand.engine).findings
    assert finding.startswith("assert queued == ")
    assert finding.endswith("in check)")


def test_blocks_that_are_live_without_a_request_are_found() -> None:
    hand = used_engine()
    hand.cache.release = lambda handle: None
    hand.engine.cancel("r3")
    assert any(
        "blocks are live although no request is" in each for each in check_indexes(hand.engine).findings
    )


def test_a_structure_that_breaks_when_it_is_looked_at_is_a_finding_too() -> None:
    hand = used_engine()
    hand.engine.prefixes.check = lambda: 1 // 0
    (finding,) = check_indexes(hand.engine).findings
    assert finding.startswith("ZeroDivisionError: ")


def test_each_finding_is_told_once() -> None:
    """The engine's own check asks the cache again."""
    hand = used_engine()
    hand.cache._pool.retain(hand.cache.dump()[0].block_ids[:1])
    findings = check_indexes(hand.engine).findings
    assert len(findings) == len(set(findings))

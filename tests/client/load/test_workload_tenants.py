"""Tenants: whose requests come when, made up or by a recording."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import pytest
from support.sent_sessions import num_common

from prefixcache_client.errors import PrefixCacheClientError
from prefixcache_client.load.workloads import Amount, PromptTooLongError, Tenants

SERVER = {"vocabulary_size": 49_152, "context_length": 8192}


def write_rates(folder: Path, *tenants: list[float]) -> Path:
    """One file for each tenant, in ServeGen's form."""
    for number, rates in enumerate(tenants):
        lines = (f"{index * 600},{rate},1.1,Gamma,0.8,0.003\n" for index, rate in enumerate(rates))
        (folder / f"chunk-{number}-trace.csv").write_text("".join(lines))
    return folder


def test_the_built_in_skew_is_that_of_a_real_service() -> None:
    """Of 43 tenants, the first makes 30 % of the requests and the first five 77 %."""
    (window,) = Tenants().rates().windows
    shares = [rate / sum(window) for rate in window]
    assert len(shares) == 43
    assert shares[0] == pytest.approx(0.30, abs=0.005)
    assert sum(shares[:5]) == pytest.approx(0.77, abs=0.005)
    assert sum(shares[:10]) == pytest.approx(0.92, abs=0.005)


def test_the_requests_have_the_skew_and_the_rate() -> None:
    sessions = list(islice(Tenants(mean_rate=10.0).sessions(), 5000))
    counts = Counter(session.tenant for session in sessions)
    assert counts.most_common(1)[0][0] == "bench-0"
    assert counts["bench-0"] / 5000 == pytest.approx(0.30, abs=0.03)
    moments = [session.seconds or 0.0 for session in sessions]
    assert moments == sorted(moments)
    assert moments[-1] == pytest.approx(500, rel=0.05)


def test_every_window_has_its_part_of_the_requests(tmp_path: Path) -> None:
    """Exactly, since only the sum of what is expected so far is rounded."""
    folder = write_rates(tmp_path, [1, 0, 3, 1], [3, 0, 0, 1])
    workload = Tenants(recording=folder, window_seconds=10, mean_rate=2).fitted_to(SERVER)

    sessions = list(workload.sessions())

    assert len(sessions) == workload.num_sessions == 80
    assert Counter(int((session.seconds or 0) // 10) for session in sessions) == {0: 36, 2: 26, 3: 18}
    assert {session.tenant for session in sessions if (session.seconds or 0) // 10 == 2} == {"bench-0"}


def test_those_who_ask_most_come_first_whatever_their_files_are_called(tmp_path: Path) -> None:
    folder = write_rates(tmp_path, [1], [5], [3])
    assert Tenants(recording=folder).rates().windows == ((5, 3, 1),)
    assert Tenants(recording=folder, tenants=2).rates().windows == ((5, 3),)


def test_a_part_of_the_recording(tmp_path: Path) -> None:
    folder = write_rates(tmp_path, [1, 2, 3, 4])
    assert Tenants(recording=folder, first_window=1, num_windows=2).rates().windows == ((2,), (3,))


def test_a_tenants_prompts_share_its_system_prompt_and_nothing_with_others() -> None:
    workload = Tenants(prefix_tokens=Amount.uniform(10, 50), suffix_tokens=Amount.fixed(5))
    sessions = list(islice(workload.sessions(), 60))
    own = {session.tenant: len(session.turns[0].prompt) - 5 for session in sessions}
    assert len(set(own.values())) > 3
    for one, other in pairwise(sessions):
        common = num_common(one.turns[0].prompt, other.turns[0].prompt)  # type: ignore[arg-type]
        assert common == (own[one.tenant] if one.tenant == other.tenant else 0)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, " holds no .csv file: give a folder with one for each tenant"),
        (
            {"a": "0,1\n600,x\n"},
            "/a.csv:2: the second column is the window's rate, a number of at least 0, not 'x'",
        ),
        (
            {"a": "0\n"},
            "/a.csv:1: the second column is the window's rate, a number of at least 0, not 'missing'",
        ),
        ({"a": "0,-1\n"}, "/a.csv:1: the second column is the window's rate"),
        ({"a": "0,1e308\n"}, "/a.csv:1: the second column is the window's rate"),
        ({"a": "0,1\n0,\ud800\n"}, "/a.csv:2: the second column is the window's rate"),
        ({"a": "0,1\n" + "x" * 200_000}, "/a.csv:2: no line of a table: field larger than field limit"),
        ({"a": "0,nan\n"}, "/a.csv:1: the second column is the window's rate"),
        ({"a": "0,1\n", "b": "0,1\n600,1\n"}, ": tenants have from 1 to 2 windows; give all the same"),
        ({"a": "0,0\n"}, ": all rates are 0"),
    ],
)
def test_a_folder_of_another_form_is_one_sentence(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    for name, content in files.items():
        (tmp_path / f"{name}.csv").write_text(content, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(PrefixCacheClientError) as error:
        Tenants(recording=tmp_path).fitted_to(SERVER)
    assert str(error.value).startswith(f"{tmp_path}{message}")


def test_windows_behind_the_end_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        PrefixCacheClientError, match="nobody asks in the windows from 9 on: there are 2 windows"
    ):
        Tenants(recording=write_rates(tmp_path, [1, 1]), first_window=9).fitted_to(SERVER)


def test_a_prompt_must_fit_into_the_context() -> None:
    with pytest.raises(PromptTooLongError, match="a prompt may be 576 tokens long"):
        Tenants().fitted_to({"context_length": 600})

"""Keys, limits and names of calls, through a real port."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status
from support.hand_engine import stream
from support.served_worker import DEADLINE_SECONDS, GatedModel, ServedWorker, greedy_request, rest_of, served
from support.tiny_loaded_model import loaded
from support.tiny_model import tiny_decoder

from prefixcache import TenantUsage
from prefixcache.v1 import cache_pb2
from prefixcache.v1 import inference_pb2 as pb
from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.server.access.access import KeyAccess, OpenAccess
from prefixcache_worker.server.access.access_settings import AccessSettings, access_settings
from prefixcache_worker.server.access.api_keys import KeyRing, make_key
from prefixcache_worker.server.access.caller import Role
from prefixcache_worker.server.access.key_file import KeyFile
from prefixcache_worker.server.access.tenant_limits import TenantLimits, TenantTable

Pairs = Iterable[tuple[str, str]]

USER_KEY, USER = make_key(tenant="shop", role=Role.USER, label="", created="")
OTHER_KEY, OTHER = make_key(tenant="other", role=Role.USER, label="", created="")
PUBLISHER_KEY, PUBLISHER = make_key(tenant="house", role=Role.PUBLISHER, label="", created="")
ADMIN_KEY, ADMIN = make_key(tenant="house", role=Role.ADMIN, label="", created="")
KEYS = KeyRing([USER, OTHER, PUBLISHER, ADMIN])
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PROMPT = stream("a", 40)


def with_keys(*, trusts_tenant_header: bool = False) -> AccessSettings:
    return AccessSettings(access=KeyAccess(lambda: KEYS, trusts_tenant_header=trusts_tenant_header))


def with_limits(**limits: TenantLimits) -> AccessSettings:
    """Everybody may call in whatever name; each name has its limits."""
    table = TenantTable(limits_by_tenant=limits)
    access = OpenAccess(trusts_tenant_header=True, tenants=table.itself)
    return AccessSettings(access=access, tenants=table.itself)


def bearer(key: str) -> tuple[str, str]:
    return "authorization", f"Bearer {key}"


def generate(worker: ServedWorker, metadata: Pairs, message: pb.GenerateRequest | None = None) -> Any:
    message = message or greedy_request(PROMPT, 2)
    return worker.inference.Generate(message, metadata=tuple(metadata), timeout=DEADLINE_SECONDS)


async def usage(worker: ServedWorker, metadata: Pairs, message: pb.GenerateRequest | None = None) -> pb.Usage:
    return (await rest_of(generate(worker, metadata, message)))[-1].completion.usage


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    """The error that a call is answered with, whether it has one response or many."""
    answer = rest_of(call) if hasattr(call, "read") else call
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answer
    return caught.value


def details_of(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    kinds = (error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo, error_details_pb2.QuotaFailure)
    found = {}
    for packed in rpc_status.from_call(error).details:
        for kind in kinds:
            detail = kind()
            if packed.Unpack(detail):
                found[kind.__name__] = detail
    return found


def tiny(context_length: int = 512) -> Any:
    return loaded(tiny_decoder(context_length=context_length))


async def test_without_a_key_nothing_answers_but_health():
    async with served(tiny(), callers=with_keys()) as worker:
        calls = [
            generate(worker, ()),
            generate(worker, [bearer(USER_KEY[:-1] + "x")]),
            worker.inference.GetModelInfo(pb.GetModelInfoRequest()),
            worker.inference.Tokenize(pb.TokenizeRequest(text="a")),
            worker.cache.GetStats(cache_pb2.GetStatsRequest()),
            worker.cache.DumpTree(cache_pb2.DumpTreeRequest()),
        ]
        for call in calls:
            error = await refusal(call)
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            assert details_of(error)["ErrorInfo"].reason == "UNAUTHENTICATED"
        assert await worker.health() == 1


async def reflected_services(worker: ServedWorker, metadata: Pairs) -> list[str]:
    stub = reflection_pb2_grpc.ServerReflectionStub(worker.channel)
    call = stub.ServerReflectionInfo(metadata=tuple(metadata), timeout=DEADLINE_SECONDS)
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    await call.done_writing()
    [response] = await rest_of(call)
    return [service.name for service in response.list_services_response.service]


async def test_reflection_answers_whoever_may_call():
    async with served(tiny(), callers=with_keys()) as worker:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reflected_services(worker, ())
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        services = await reflected_services(worker, [bearer(USER_KEY)])
    assert "prefixcache.v1.InferenceService" in services
    async with served(tiny()) as worker:
        assert await reflected_services(worker, ()) == services


async def test_b42_each_key_has_a_cache_of_its_own():
    """What tenant B says of itself, in whatever place, brings it nothing of tenant A's."""
    async with served(tiny(), callers=with_keys(trusts_tenant_header=True)) as worker:
        assert (await usage(worker, [bearer(USER_KEY)])).cached_tokens == 0
        assert (await usage(worker, [bearer(USER_KEY)])).cached_tokens == len(PROMPT) - 1
        assert (await usage(worker, [bearer(OTHER_KEY)])).cached_tokens == 0

        error = await refusal(generate(worker, [bearer(OTHER_KEY), ("x-tenant-id", "shop")]))
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        salted = greedy_request(PROMPT, 2, cache=pb.CacheOptions(salt="shop"))
        assert (await usage(worker, [bearer(OTHER_KEY)], salted)).cached_tokens == 0
        proxied = [bearer(ADMIN_KEY), ("x-tenant-id", "shop")]
        assert (await usage(worker, proxied)).cached_tokens == len(PROMPT) - 1


async def test_a_role_allows_what_it_says():
    public = greedy_request(PROMPT, 1, cache=pb.CacheOptions(public_tokens=32))
    async with served(tiny(), callers=with_keys(trusts_tenant_header=True)) as worker:
        stats = cache_pb2.GetStatsRequest()
        for metadata in ([bearer(USER_KEY)], [bearer(ADMIN_KEY), ("x-tenant-id", "shop")]):
            error = await refusal(generate(worker, metadata, public))
            assert details_of(error)["ErrorInfo"].reason == "NOT_PUBLISHER"
            error = await refusal(worker.cache.GetStats(stats, metadata=tuple(metadata)))
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        await usage(worker, [bearer(PUBLISHER_KEY)], public)
        await worker.cache.GetStats(stats, metadata=(bearer(ADMIN_KEY),))
        assert (await usage(worker, [bearer(USER_KEY)])).cached_tokens == 32


async def test_keys_are_followed_as_their_file_changes(tmp_path: Path):
    path = tmp_path / "keys.json"
    file = KeyFile(path)
    file.add(USER)
    settings = access_settings(WorkerConfig(keys=str(path)))
    # Make the next look due: the clock of a test that waits a second would be a sleep.
    watched = settings.access._keys.__self__  # type: ignore[attr-defined]
    async with served(tiny(), callers=settings) as worker:
        await usage(worker, [bearer(USER_KEY)])
        assert (await refusal(generate(worker, [bearer(OTHER_KEY)]))).code() is (
            grpc.StatusCode.UNAUTHENTICATED
        )
        file.add(OTHER)
        file.revoke(USER.id)
        watched._looked -= 1
        await usage(worker, [bearer(OTHER_KEY)])
        assert (await refusal(generate(worker, [bearer(USER_KEY)]))).code() is (
            grpc.StatusCode.UNAUTHENTICATED
        )


async def test_the_rate_of_a_tenant_is_told_with_the_real_wait():
    callers = with_limits(shop=TenantLimits(requests_per_minute=0.5, burst_requests=1))
    async with served(tiny(), callers=callers) as worker:
        await worker.answer(greedy_request(PROMPT, 1), tenant="shop")
        error = await refusal(worker.generate(greedy_request(PROMPT, 1), tenant="shop"))
        await worker.answer(greedy_request(PROMPT, 1), tenant="other")

    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    details = details_of(error)
    assert details["ErrorInfo"].reason == "RATE_LIMITED"
    assert 60 < details["RetryInfo"].retry_delay.ToTimedelta().total_seconds() <= 120
    assert details["QuotaFailure"].violations[0].subject == "tenant:shop"


async def test_live_requests_of_a_tenant_are_bounded_and_given_back():
    model = GatedModel(tiny_decoder(context_length=512))
    callers = with_limits(shop=TenantLimits(max_live_requests=1))
    async with served(loaded(model), callers=callers) as worker:
        running = worker.generate(greedy_request(PROMPT, 4), tenant="shop")
        first = running.read()  # starts the call
        await model.begin(1)
        error = await refusal(worker.generate(greedy_request(PROMPT, 1), tenant="shop"))
        assert details_of(error)["ErrorInfo"].reason == "TOO_MANY_REQUESTS"
        running.cancel()
        first.close()
        await worker.clients_gone()
        model.allow(1000)
        await worker.answer(greedy_request(PROMPT, 1), tenant="shop")


async def test_who_may_not_ask_for_priority_0_need_not_ask_for_less():
    callers = with_limits(night=TenantLimits(max_priority=-10))
    async with served(tiny(), callers=callers) as worker:
        await worker.answer(greedy_request(PROMPT, 1), tenant="night")
        error = await refusal(worker.generate(greedy_request(PROMPT, 1, priority=0), tenant="night"))
    assert error.details() == "priority: 0 is not in -100 to -10"


@pytest.mark.parametrize(
    ("fields", "field_name"),
    [
        ({"priority": 6}, "priority"),
        ({"cache": pb.CacheOptions(priority=1)}, "cache.priority"),
    ],
)
async def test_a_priority_above_the_tenants_is_an_invalid_field(fields: dict[str, Any], field_name: str):
    callers = with_limits(shop=TenantLimits(max_priority=5, max_cache_priority=0))
    async with served(tiny(), callers=callers) as worker:
        error = await refusal(worker.generate(greedy_request(PROMPT, 1, **fields), tenant="shop"))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details().startswith(f"{field_name}: ")
        await worker.answer(greedy_request(PROMPT, 1, **fields), tenant="other")
        await worker.answer(greedy_request(PROMPT, 1, priority=5), tenant="shop")


async def quota_of(worker: ServedWorker, tenant: str) -> tuple[int, int | None]:
    found: TenantUsage = await worker.worker.engine_loop.call(lambda engine: engine.cache.usage(tenant))
    return found.floor_blocks, found.ceiling_blocks


async def test_floors_and_ceilings_reach_the_cache_and_follow_the_file(caplog: pytest.LogCaptureFixture):
    tables = [
        TenantTable(
            default=TenantLimits(ceiling_blocks=8),
            limits_by_tenant={
                "a": TenantLimits(floor_blocks=50),
                "b": TenantLimits(floor_blocks=20, ceiling_blocks=30),
            },
        )
    ]
    access = OpenAccess(trusts_tenant_header=True, tenants=lambda: tables[-1])
    callers = AccessSettings(access=access, tenants=lambda: tables[-1])
    async with served(tiny(), callers=callers, kv_headroom=0.25) as worker:  # a pool of 80 blocks
        assert await quota_of(worker, "a") == (50, None)
        assert await quota_of(worker, "b") == (20, 30)
        await worker.answer(greedy_request(PROMPT, 1), tenant="new")
        assert await quota_of(worker, "new") == (0, 8)
        error = await refusal(worker.generate(greedy_request(stream("b", 200), 1), tenant="new"))
        assert details_of(error)["ErrorInfo"].reason == "QUOTA_EXCEEDED"
        assert details_of(error)["QuotaFailure"].violations[0].subject == "tenant:new"

        # The sum stays within the pool all the time, though the larger floor comes first by name.
        tables.append(TenantTable(limits_by_tenant={"a": TenantLimits(floor_blocks=79)}))
        await worker.answer(greedy_request(PROMPT, 1), tenant="any")
        assert [await quota_of(worker, name) for name in ("a", "b", "new")] == [
            (79, None),
            (0, None),
            (0, None),
        ]

        tables.append(
            TenantTable(
                default=TenantLimits(ceiling_blocks=9), limits_by_tenant={"c": TenantLimits(floor_blocks=81)}
            )
        )
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                await worker.answer(greedy_request(PROMPT, 1), tenant="any")
        [record] = caplog.records
        assert (
            "the cache keeps its former quotas: --tenants: the floors sum to 81 blocks" in record.getMessage()
        )
        assert [await quota_of(worker, name) for name in ("a", "any")] == [(79, None), (0, None)]


@pytest.mark.parametrize(
    ("table", "settings", "problem"),
    [
        (
            TenantTable(limits_by_tenant={"a": TenantLimits(floor_blocks=81)}),
            {},
            "the floors sum to 81 blocks, and the pool has 80",
        ),
        (
            TenantTable(default=TenantLimits(ceiling_blocks=9)),
            {"scheme": "paged"},
            "floor_blocks and ceiling_blocks need --scheme shared",
        ),
    ],
)
async def test_what_the_cache_cannot_hold_stops_the_start(
    table: TenantTable, settings: dict[str, Any], problem: str
):
    with pytest.raises(ConfigError, match=problem):
        async with served(tiny(), callers=AccessSettings(tenants=table.itself), **settings):
            pass


@pytest.mark.parametrize(
    ("sent", "named", "expected"),
    [("", ["mine 1"], "mine 1"), ("own", ["mine"], "own"), ("own", [], "own"), ("", [], None)],
)
async def test_a_request_has_the_first_name_that_it_was_given(
    sent: str, named: list[str], expected: str | None
):
    async with served(tiny()) as worker:
        call = generate(
            worker, [("x-request-id", name) for name in named], greedy_request(PROMPT, 1, request_id=sent)
        )
        metadata = dict(await call.initial_metadata())
        completion = (await rest_of(call))[-1].completion
    assert metadata["x-request-id"] == completion.request_id
    if expected is not None:
        assert completion.request_id == expected
    else:
        assert re.fullmatch("[0-9a-f]{32}", completion.request_id)


async def test_a_name_that_metadata_cannot_carry_does_not_come_back():
    async with served(tiny()) as worker:
        call = generate(worker, (), greedy_request(PROMPT, 1, request_id="größe\n"))
        assert "x-request-id" not in dict(await call.initial_metadata())
        assert (await rest_of(call))[-1].completion.request_id == "größe\n"


@pytest.mark.parametrize("names", [["x" * 257], ["a", "b"]])
async def test_a_bad_name_is_refused(names: list[str]):
    async with served(tiny()) as worker:
        error = await refusal(generate(worker, [("x-request-id", name) for name in names]))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith("x-request-id: ")


def access_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "prefixcache_worker.server.request_record"
    ]


async def test_the_log_has_one_line_for_each_request(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    async with served(tiny()) as worker:
        await rest_of(
            generate(worker, [("traceparent", TRACE), ("x-tenant-id", "shop"), ("x-request-id", "r 1")])
        )
        await refusal(generate(worker, [("traceparent", "nonsense")], greedy_request(PROMPT, 0)))
        lines = access_lines(caplog)
    seconds = r"seconds=\d+\.\d{3}"
    assert re.fullmatch(
        rf"Generate tenant='shop' request_id='r 1' trace={TRACE} code=OK prompt_tokens=40 cached_tokens=0 "
        rf"completion_tokens=2 {seconds}",
        lines[0],
    )
    assert re.fullmatch(
        rf"Generate tenant='default' request_id='[0-9a-f]+' trace=- code=INVALID_ARGUMENT {seconds}", lines[1]
    )


async def test_the_log_tells_of_cancelled_requests_and_no_name_begins_a_line(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO)
    model = GatedModel(tiny_decoder(context_length=512))
    async with served(loaded(model)) as worker:
        call = generate(worker, (), greedy_request(PROMPT, 4, request_id="a\nGenerate tenant="))
        first = call.read()
        await model.begin(1)
        call.cancel()
        first.close()
        await worker.clients_gone()
        model.allow(1000)
        await worker.answer(greedy_request(PROMPT, 1))
        cancelled, answered = access_lines(caplog)
    assert "request_id='a\\nGenerate tenant=' trace=- code=CANCELLED seconds=" in cancelled
    assert "code=OK" in answered


async def test_no_secret_is_logged_or_told(caplog: pytest.LogCaptureFixture):
    """Everything that all loggers write at their most talkative, and all sentences that clients get."""
    caplog.set_level(logging.DEBUG)
    salt, words = "pepper-4711", "an unusual question"
    private = greedy_request(PROMPT, 1, cache=pb.CacheOptions(salt=salt))
    text = pb.GenerateRequest(text=words, stop_conditions=pb.StopConditions(max_tokens=1))
    wrong = USER_KEY[:-64] + "ab" * 32
    told: list[str] = []
    async with served(tiny(), callers=with_keys()) as worker:
        await rest_of(generate(worker, [bearer(USER_KEY)], private))
        await rest_of(generate(worker, [bearer(USER_KEY)], text))
        bad = greedy_request(PROMPT, 1, n=0, cache=pb.CacheOptions(salt=salt))
        for metadata, message in (
            ([bearer(wrong)], private),
            ([("authorization", USER_KEY)], private),
            ([bearer(USER_KEY), bearer(USER_KEY)], private),
            ([bearer(USER_KEY), ("x-tenant-id", "other")], private),
            ([bearer(USER_KEY)], bad),
        ):
            error = await refusal(generate(worker, metadata, message))
            told.append(f"{error.details()} {error.debug_error_string()} {error.trailing_metadata()}")
    everything = "\n".join([caplog.text, *told, repr(USER), repr(KEYS), repr(worker)])
    assert "code=OK" in everything
    for secret in (USER_KEY[-64:], wrong[-64:], USER.digest, salt, words):
        assert secret not in everything

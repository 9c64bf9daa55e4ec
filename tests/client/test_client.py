"""Both clients against a worker on a real port. The synchronous one is called in the same words."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import grpc
import pytest
import pytest_asyncio
from support.fake_worker import FakeWorker, delta, stats

from prefixcache.v1 import cache_pb2
from prefixcache_client import (
    AsyncClient,
    Client,
    Completion,
    Delta,
    FailedPreconditionError,
    FinishReason,
    Generation,
    SavedSnapshot,
    Usage,
)

HELLO = [Delta(0, "Hello", (5,)), Delta(0, " world", (6,), FinishReason.STOP)]


@pytest.fixture
def client(worker: FakeWorker) -> Iterator[Client]:
    """A client of tenant acme."""
    with Client(worker.address, tenant="acme") as connected:
        yield connected


@pytest_asyncio.fixture
async def async_client(worker: FakeWorker) -> AsyncIterator[AsyncClient]:
    """An asynchronous client of tenant acme."""
    async with AsyncClient(worker.address, tenant="acme") as connected:
        yield connected


class BothClients:
    """Makes the same call through both clients and requires the same answer."""

    def __init__(self, client: Client, async_client: AsyncClient) -> None:
        self._client, self._async_client = client, async_client

    async def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        answer = await asyncio.to_thread(getattr(self._client, method), *arguments, **options)
        assert await getattr(self._async_client, method)(*arguments, **options) == answer
        return answer


@pytest.fixture
def both(client: Client, async_client: AsyncClient) -> BothClients:
    """Both clients."""
    return BothClients(client, async_client)


def test_both_clients_have_the_same_methods() -> None:
    def signatures(cls: type) -> dict[str, list[inspect.Parameter]]:
        return {
            name: list(inspect.signature(method).parameters.values())
            for name, method in vars(cls).items()
            if callable(method) and (not name.startswith("_") or name == "__init__")
        }

    assert signatures(Client) == signatures(AsyncClient)


async def test_generate_gives_every_choice_and_the_cost(both: BothClients, worker: FakeWorker) -> None:
    answer = await both.call("generate", [5, 6, 7], n=2, max_tokens=4, temperature=0.0)

    assert isinstance(answer, Generation)
    assert [(choice.text, choice.token_ids) for choice in answer.choices] == [("Hello world", (5, 6))] * 2
    assert answer.usage == Usage(prompt_tokens=10, cached_tokens=4, computed_tokens=6, completion_tokens=2)
    assert worker.requests[0] == worker.requests[1]
    assert list(worker.requests[0].token_ids.ids) == [5, 6, 7]
    assert worker.requests[0].sampling.HasField("temperature")
    assert worker.tenants == ["acme", "acme"]


async def test_a_finished_generate_is_not_cancelled(both: BothClients, worker: FakeWorker) -> None:
    await both.call("generate", "hi")

    assert not worker.cancelled.is_set()


async def test_chat_puts_the_system_text_in_front(both: BothClients, worker: FakeWorker) -> None:
    answer = await both.call("chat", "Hi", system="Be kind.", public_messages=1)

    assert answer.text == "Hello world"
    for request in worker.requests:
        assert [turn.content for turn in request.chat.messages] == ["Be kind.", "Hi"]
        assert request.cache.public_messages == 1


async def test_abort_says_whether_there_was_anything_to_end(both: BothClients, worker: FakeWorker) -> None:
    worker.live_ids = {"mine"}

    assert await both.call("abort", "mine") is True
    assert await both.call("abort", "another") is False
    assert worker.tenants == ["acme"] * 4


async def test_tokenize_and_detokenize(both: BothClients) -> None:
    assert await both.call("tokenize", "ab") == (97, 98)
    assert await both.call("tokenize", [{"role": "user", "content": "c"}]) == (99,)
    assert await both.call("detokenize", [2, 97]) == "\x02a"
    assert await both.call("detokenize", [2, 97], skip_special_tokens=True) == "a"


async def test_model_info(both: BothClients) -> None:
    info = await both.call("model_info")

    assert (info.name, info.vocabulary_size, info.eos_token_ids) == ("fake", 500, (2, 7))


async def test_stats_reset_peaks_only_on_demand(both: BothClients, worker: FakeWorker) -> None:
    worker.stats = stats(peak_live=150)

    assert (await both.call("stats")).blocks.peak_live == 150
    assert not worker.peaks_were_reset
    await both.call("stats", reset_peaks=True)
    assert worker.peaks_were_reset


async def test_tree_down_to_a_depth(both: BothClients, worker: FakeWorker) -> None:
    worker.nodes = [cache_pb2.TreeNode(id=1), cache_pb2.TreeNode(id=2, parent_id=1, tenant="acme")]

    assert [(node.id, node.parent_id, node.tenant) for node in (await both.call("tree")).nodes] == [
        (1, 0, ""),
        (2, 1, "acme"),
    ]
    assert len((await both.call("tree", max_depth=1)).nodes) == 1


async def test_a_snapshot_is_saved_and_restored(both: BothClients, worker: FakeWorker) -> None:
    assert await both.call("snapshot") == SavedSnapshot(num_blocks=3, num_bytes=192, seconds=0.25)
    assert await both.call("restore") == 3
    worker.nodes = [cache_pb2.TreeNode(id=1)]
    with pytest.raises(FailedPreconditionError, match="the cache is not empty"):
        await both.call("restore")


async def test_health_follows_the_worker(both: BothClients, worker: FakeWorker) -> None:
    assert await both.call("health") is True
    worker.stop_serving()
    assert await both.call("health") is False


async def test_a_message_of_many_megabytes_goes_through(both: BothClients, worker: FakeWorker) -> None:
    text = "x" * (12 * 1024 * 1024)

    await both.call("generate", text)
    assert worker.requests[0].text == text


async def test_the_clients_own_deadline_holds_for_calls_without_one(worker: FakeWorker) -> None:
    with Client(worker.address, deadline=50) as client:
        client.model_info()
        client.model_info(deadline=5)
    async with AsyncClient(worker.address, deadline=50) as async_client:
        await async_client.model_info()
        await async_client.model_info(deadline=5)

    limits = [seconds or 0.0 for seconds in worker.deadlines_seconds]
    assert ["own" if 10 < limit < 60 else limit < 10 for limit in limits] == ["own", True, "own", True]


@pytest.mark.parametrize(
    ("options", "authorization", "tenant"),
    [
        ({}, "", ""),
        ({"api_key": "pc_1_2"}, "Bearer pc_1_2", ""),
        ({"api_key": "pc_1_2", "tenant": "acme"}, "Bearer pc_1_2", "acme"),
    ],
)
async def test_it_says_who_calls_only_if_it_was_told(
    worker: FakeWorker, options: dict[str, str], authorization: str, tenant: str
) -> None:
    with Client(worker.address, **options) as client:
        client.model_info()
        client.generate("hi")
    async with AsyncClient(worker.address, **options) as async_client:
        await async_client.model_info()
        await async_client.generate("hi")
    assert worker.authorizations == [authorization] * 4
    assert worker.tenants == [tenant] * 4


@pytest.mark.parametrize("key", ["", "pc_1 2", "pc_1\n2", "pc_é"])
def test_a_key_that_metadata_cannot_hold_is_refused_without_showing_it(key: str) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(ValueError, match="the API key must be printable ASCII") as caught:
            kind(api_key=key)
        assert not key or key not in str(caught.value)


@pytest.mark.parametrize("tenant", ["", "x" * 129, "café", "a\nb"])
async def test_a_tenant_that_metadata_cannot_hold_is_refused(tenant: str) -> None:
    with pytest.raises(ValueError, match="tenant must be 1 to 128 printable ASCII characters"):
        Client(tenant=tenant)
    with pytest.raises(ValueError, match="tenant must be 1 to 128 printable ASCII characters"):
        AsyncClient(tenant=tenant)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "localhost",
        "127.0.0.1",
        ":50051",
        "localhost:",
        "localhost:http",
        "127.0.0.1:0",
        "127.0.0.1:65536",
        "::1:50051",
        "my host:50051",
        "caf\udce9:50051",
    ],
)
async def test_an_address_without_host_or_port_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="address must be HOST:PORT with a port of 1 to 65535"):
        Client(address)
    with pytest.raises(ValueError, match="address must be HOST:PORT with a port of 1 to 65535"):
        AsyncClient(address)


@pytest.mark.parametrize("address", ["localhost:1", "127.0.0.1:65535", "[::1]:50051"])
def test_a_whole_address_is_taken(address: str) -> None:
    with Client(address) as client:
        assert client.address == address


async def test_stream_yields_deltas_then_one_completion(client: Client, async_client: AsyncClient) -> None:
    events = await asyncio.to_thread(lambda: list(client.stream("hi", request_id="mine")))

    assert events[:-1] == HELLO
    assert isinstance(events[-1], Completion)
    assert events[-1].request_id == "mine"
    assert [event async for event in async_client.stream("hi", request_id="mine")] == events


def test_stream_refuses_bad_arguments_at_once(client: Client, worker: FakeWorker) -> None:
    with pytest.raises(ValueError, match="n: "):
        client.stream("hi", n=-1)
    assert worker.requests == []


def endless(worker: FakeWorker) -> None:
    """Make the worker send one delta and then wait until the call is cancelled."""

    def behaviour(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield delta("Hello", 5)
        worker.cancelled.wait(60)

    worker.generate = behaviour


def test_break_cancels_the_call(client: Client, worker: FakeWorker) -> None:
    endless(worker)

    for event in client.stream("hi"):
        assert event == HELLO[0]
        break

    assert worker.cancelled.wait(60)


def test_close_cancels_the_call(client: Client, worker: FakeWorker) -> None:
    endless(worker)
    events = client.stream("hi")
    next(events)

    events.close()

    assert worker.cancelled.wait(60)


def test_an_error_in_the_loop_cancels_the_call(client: Client, worker: FakeWorker) -> None:
    endless(worker)

    def read() -> None:
        for _ in client.stream("hi"):
            raise RuntimeError("reader failed")

    with pytest.raises(RuntimeError, match="reader failed"):
        read()
    assert worker.cancelled.wait(60)


async def test_break_cancels_the_call_of_the_async_client(
    async_client: AsyncClient, worker: FakeWorker
) -> None:
    endless(worker)

    async for event in async_client.stream("hi"):
        assert event == HELLO[0]
        break

    assert await asyncio.to_thread(worker.cancelled.wait, 60)


async def test_aclosing_cancels_the_call_of_the_async_client(
    async_client: AsyncClient, worker: FakeWorker
) -> None:
    endless(worker)

    async with aclosing(async_client.stream("hi")) as events:
        assert await anext(events) == HELLO[0]

    assert await asyncio.to_thread(worker.cancelled.wait, 60)


async def test_cancelling_the_task_cancels_the_call(async_client: AsyncClient, worker: FakeWorker) -> None:
    arrived = threading.Event()

    def behaviour(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        arrived.set()
        worker.cancelled.wait(60)
        yield delta("too late")

    worker.generate = behaviour
    task = asyncio.create_task(async_client.generate("hi"))
    assert await asyncio.to_thread(arrived.wait, 60)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(worker.cancelled.wait, 60)


def test_the_client_is_whole_after_a_cancelled_stream(client: Client, worker: FakeWorker) -> None:
    two_words = worker.generate
    endless(worker)
    for _ in range(20):
        next(client.stream("hi"))
    worker.generate = two_words

    assert client.generate("hi").text == "Hello world"


def test_many_threads_share_one_client(client: Client) -> None:
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(client.generate("hi").text)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert answers == ["Hello world"] * 16

"""The asynchronous client. Same calls as `client.py`; only what waits is written here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Self, Unpack

from grpc_health.v1 import health_pb2, health_pb2_grpc

from prefixcache.v1 import (
    cache_pb2,
    cache_pb2_grpc,
    diagnosis_pb2,
    diagnosis_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
)
from prefixcache_client.answers import (
    Event,
    Generation,
    ModelInfo,
    event_from_proto,
    generation_from_events,
    model_info_from_proto,
)
from prefixcache_client.async_connection import AsyncConnection
from prefixcache_client.async_diagnosis import AsyncDiagnosis
from prefixcache_client.cache_answers import (
    SavedSnapshot,
    Stats,
    Tree,
    saved_snapshot_from_proto,
    stats_from_proto,
    tree_from_proto,
)
from prefixcache_client.cache_events import CacheEvent, cache_event_from_proto
from prefixcache_client.channel import DEFAULT_ADDRESS
from prefixcache_client.explanation import Explanation, explanation_from_proto
from prefixcache_client.live_requests import LiveRequests, live_requests_from_proto
from prefixcache_client.messages import (
    GenerateOptions,
    Message,
    Prompt,
    chat_messages,
    create_prefix_request,
    detokenize_request,
    explain_request,
    generate_request,
    tokenize_request,
    update_prefix_request,
)
from prefixcache_client.prefix_answers import (
    CreatedPrefix,
    Prefix,
    TenantUsage,
    created_prefix_from_proto,
    prefix_from_proto,
    usage_from_proto,
)
from prefixcache_client.tls import Tls
from prefixcache_client.tracing import generate_span


class AsyncClient:
    """One connection to a worker, in the name of one tenant, for one event loop.

    >>> async with AsyncClient("127.0.0.1:50051", api_key=key) as client:
    ...     print((await client.generate("The capital of France is", max_tokens=8)).text)

    Deadlines and errors are those of `Client`. Cancelling the awaiting task cancels the call.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        api_key: str | None = None,
        tenant: str | None = None,
        tls: Tls | None = None,
        deadline: float | None = None,
    ) -> None:
        """Connects when the first call is made. Requires: a running event loop.

        A worker with keys takes the tenant from `api_key`. `tenant` is for one that trusts its callers to
        name theirs (`--trust-tenant-header`); any other refuses it.

        Raises ValueError unless the address is HOST:PORT, the key printable ASCII without spaces, and the
        tenant 1 to 128 printable ASCII characters, and OSError when a file of `tls` cannot be read. Without
        `tls` nothing is encrypted, the key neither.
        """
        self._connection = AsyncConnection(
            address, api_key=api_key, tenant=tenant, tls=tls, deadline=deadline
        )
        self.address = self._connection.address
        self.tenant = tenant
        channel = self._connection.channel
        self._inference = inference_pb2_grpc.InferenceServiceStub(channel)
        self._cache = cache_pb2_grpc.CacheServiceStub(channel)
        self._list_requests = diagnosis_pb2_grpc.DiagnosisServiceStub(channel).ListRequests
        self._health = health_pb2_grpc.HealthStub(channel)
        self.diagnosis = AsyncDiagnosis(self._connection)
        """Looks inside the worker. Needs an admin."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection. Calls that still run are cancelled."""
        await self._connection.close()

    async def generate(
        self, prompt: Prompt, *, deadline: float | None = None, **options: Unpack[GenerateOptions]
    ) -> Generation:
        """The whole answer to a prompt: text, token ids or chat messages.

        >>> generation = await client.generate("Once upon a time", max_tokens=32, temperature=0)
        """
        events = [event async for event in self.stream(prompt, deadline=deadline, **options)]
        return generation_from_events(events)

    def stream(
        self, prompt: Prompt, *, deadline: float | None = None, **options: Unpack[GenerateOptions]
    ) -> AsyncGenerator[Event, None]:
        """The answer piece by piece: deltas, then one completion. The call starts with the first step.

        Leaving the loop early cancels the call as soon as the iterator is dropped; `contextlib.aclosing`
        around it cancels at once.

        >>> async for event in client.stream("Once upon a time"):
        ...     if isinstance(event, Delta):
        ...         print(event.text, end="")
        """
        request = generate_request(prompt, **options)
        span = generate_span(request, address=self.address)
        return self._connection.events(self._inference.Generate, request, event_from_proto, deadline, span)

    async def chat(
        self,
        messages: str | Sequence[Message],
        *,
        system: str | None = None,
        deadline: float | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Generation:
        """The next assistant turn of a conversation. A plain text is one user turn; `system` goes in front.

        >>> answer = await client.chat("Is my ticket refundable?", system=policy, public_messages=1)
        """
        return await self.generate(chat_messages(messages, system=system), deadline=deadline, **options)

    async def abort(self, request_id: str, *, deadline: float | None = None) -> bool:
        """End a live request of the tenant, wherever it runs; False if there is none of this id.

        The stream of the request raises CallCancelledError.

        >>> await client.abort("my request")
        """
        request = inference_pb2.AbortRequest(request_id=request_id)
        return bool((await self._connection.call(self._inference.Abort, request, deadline)).was_live)

    async def tokenize(
        self, prompt: str | Sequence[Message], *, deadline: float | None = None
    ) -> tuple[int, ...]:
        """The token ids that `generate` would compute for a text or conversation.

        >>> num_prompt_tokens = len(await client.tokenize("Once upon a time"))
        """
        response = await self._connection.call(self._inference.Tokenize, tokenize_request(prompt), deadline)
        return tuple(response.token_ids)

    async def detokenize(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = False, deadline: float | None = None
    ) -> str:
        """The text of token ids. Bytes that are no complete UTF-8 come out as U+FFFD.

        >>> text = await client.detokenize(generation.choices[0].token_ids)
        """
        request = detokenize_request(token_ids, skip_special_tokens=skip_special_tokens)
        return str((await self._connection.call(self._inference.Detokenize, request, deadline)).text)

    async def model_info(self, *, deadline: float | None = None) -> ModelInfo:
        """The model, its shape and the worker's limits.

        >>> print((await client.model_info()).context_length)
        """
        request = inference_pb2.GetModelInfoRequest()
        return model_info_from_proto(
            await self._connection.call(self._inference.GetModelInfo, request, deadline)
        )

    async def stats(self, *, reset_peaks: bool = False, deadline: float | None = None) -> Stats:
        """Counts of blocks, tokens and requests. `reset_peaks` starts the peaks anew after reading them.

        >>> print((await client.stats()).requests.running)
        """
        request = cache_pb2.GetStatsRequest(reset_peaks=reset_peaks)
        return stats_from_proto(await self._connection.call(self._cache.GetStats, request, deadline))

    async def tree(self, *, max_depth: int = 0, deadline: float | None = None) -> Tree:
        """The radix tree, parents before children. `max_depth` leaves out deeper nodes; 0 means all.

        >>> print(len((await client.tree()).nodes))
        """
        request = cache_pb2.DumpTreeRequest(max_depth=max_depth)
        return tree_from_proto(await self._connection.call(self._cache.DumpTree, request, deadline))

    async def snapshot(self, *, deadline: float | None = None) -> SavedSnapshot:
        """Save what is cached to the worker's folder, now. Needs an admin.

        Raises FailedPreconditionError when the worker has no folder, or cannot write to it.

        >>> print((await client.snapshot()).num_blocks, "blocks come back when the worker starts again")
        """
        request = cache_pb2.SnapshotRequest()
        return saved_snapshot_from_proto(await self._connection.call(self._cache.Snapshot, request, deadline))

    async def restore(self, *, deadline: float | None = None) -> int:
        """Fill the cache from the last snapshot, and return how many blocks it has now. Needs an admin.

        Raises FailedPreconditionError when the cache is not empty, or there is no snapshot that fits it.

        >>> print(await client.restore(), "blocks are cached")
        """
        request = cache_pb2.RestoreRequest()
        return int((await self._connection.call(self._cache.Restore, request, deadline)).num_blocks)

    async def explain(
        self,
        prompt: Prompt,
        *,
        public_tokens: int | None = None,
        public_messages: int | None = None,
        salt: str = "",
        deadline: float | None = None,
    ) -> Explanation:
        """How much of a prompt is cached, and why not more. The options are those of `generate`.

        >>> print((await client.explain("Once upon a time")).summary)
        """
        request = explain_request(
            prompt, public_tokens=public_tokens, public_messages=public_messages, salt=salt
        )
        return explanation_from_proto(await self._connection.call(self._cache.Explain, request, deadline))

    def watch_events(
        self, *, from_sequence_number: int | None = None, deadline: float | None = None
    ) -> AsyncGenerator[CacheEvent, None]:
        """Every change of what is cached, without end. Needs an admin.

        First all that is cached now and a `StateComplete`, unless the number of the first event wanted
        is given: one more than the last one seen. Raises OutOfRangeError when the worker does not have it
        (any more): watch from the beginning then.

        >>> async for event in client.watch_events():
        ...     print(event.sequence_number)
        """
        request = cache_pb2.WatchEventsRequest(from_sequence_number=from_sequence_number)
        return self._connection.events(self._cache.WatchEvents, request, cache_event_from_proto, deadline)

    async def reset(self, *, deadline: float | None = None) -> None:
        """Forget everything that is cached, and all prefixes. Running requests go on. Needs an admin.

        >>> await client.reset()
        """
        await self._connection.call(self._cache.Reset, cache_pb2.ResetRequest(), deadline)

    async def create_prefix(
        self,
        prompt: Prompt,
        *,
        public: bool = False,
        salt: str = "",
        ttl_seconds: float | None = None,
        label: str = "",
        deadline: float | None = None,
    ) -> CreatedPrefix:
        """Compute the beginning of prompts now, and keep it. Chat messages open no answer.

        Prompts that begin with it find it; `generate(prefix=...)` puts it in front. Each use starts its
        time anew: `ttl_seconds`, 0 for ever, else the worker's default. `public` lets all tenants read it.

        >>> policy = await client.create_prefix([{"role": "system", "content": text}], ttl_seconds=600)
        >>> print(policy.prefix.prefix_id, policy.prefix.num_kept_tokens)
        """
        request = create_prefix_request(
            prompt, public=public, salt=salt, ttl_seconds=ttl_seconds, label=label
        )
        return created_prefix_from_proto(
            await self._connection.call(self._cache.CreatePrefix, request, deadline)
        )

    async def get_prefix(self, prefix_id: str, *, deadline: float | None = None) -> Prefix:
        """A prefix as it is now. Raises NotFoundError when it has ended or is another tenant's.

        >>> print((await client.get_prefix(prefix_id)).seconds_left)
        """
        request = cache_pb2.GetPrefixRequest(prefix_id=prefix_id)
        return prefix_from_proto(
            (await self._connection.call(self._cache.GetPrefix, request, deadline)).prefix
        )

    async def list_prefixes(
        self, *, page_size: int | None = None, deadline: float | None = None
    ) -> AsyncGenerator[Prefix, None]:
        """The tenant's prefixes, the oldest first, fetched page by page as they are needed.

        >>> print([prefix.label async for prefix in client.list_prefixes()])
        """
        request = cache_pb2.ListPrefixesRequest(page_size=page_size)
        while True:
            response = await self._connection.call(self._cache.ListPrefixes, request, deadline)
            for prefix in response.prefixes:
                yield prefix_from_proto(prefix)
            if not response.next_page_token:
                return
            request.page_token = response.next_page_token

    async def update_prefix(
        self,
        prefix_id: str,
        *,
        ttl_seconds: float | None = None,
        label: str | None = None,
        deadline: float | None = None,
    ) -> Prefix:
        """Change what is given, and start its time anew.

        >>> await client.update_prefix(prefix_id, ttl_seconds=3600)
        """
        request = update_prefix_request(prefix_id, ttl_seconds=ttl_seconds, label=label)
        return prefix_from_proto(
            (await self._connection.call(self._cache.UpdatePrefix, request, deadline)).prefix
        )

    async def delete_prefix(self, prefix_id: str, *, deadline: float | None = None) -> None:
        """Let go of a prefix; what is cached of it may be evicted then.

        >>> await client.delete_prefix(prefix_id)
        """
        await self._connection.call(
            self._cache.DeletePrefix, cache_pb2.DeletePrefixRequest(prefix_id=prefix_id), deadline
        )

    async def usage(
        self, *, tenant: str = "", all_tenants: bool = False, deadline: float | None = None
    ) -> tuple[TenantUsage, ...]:
        """What the client's own tenant has cost; an admin may name another `tenant`, or ask for all.

        >>> (usage,) = await client.usage()
        >>> print(usage.cached_tokens / usage.prompt_tokens)
        """
        request = cache_pb2.GetUsageRequest(tenant=tenant, all_tenants=all_tenants)
        return usage_from_proto(await self._connection.call(self._cache.GetUsage, request, deadline))

    async def requests(self, *, deadline: float | None = None) -> LiveRequests:
        """The requests that run or wait now: the tenant's own, or for an admin all.

        >>> print([request.num_shared_blocks for request in (await client.requests()).requests])
        """
        request = diagnosis_pb2.ListRequestsRequest()
        return live_requests_from_proto(await self._connection.call(self._list_requests, request, deadline))

    async def health(self, *, deadline: float | None = None) -> bool:
        """True when the worker takes requests, False while it starts or drains.

        Raises UnavailableError when nobody listens at the address.

        >>> assert await client.health()
        """
        response = await self._connection.call(self._health.Check, health_pb2.HealthCheckRequest(), deadline)
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

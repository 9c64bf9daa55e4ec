"""Clients of the HTTP door that misbehave at random; the HTTP part of a storm."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Sequence
from typing import Any

import h11
from support.fault_storm import MAX_TOKENS, NUM_PREFIXES, PATIENCE_SECONDS, PREFIX_TOKENS, Tally
from support.http_worker import events_of
from support.raw_http import HttpAnswer, RawHttp, post_body, raw_http

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


class HttpStorm:
    """Random completions, streamed or whole, whose clients leave early, or stay and look at everything."""

    def __init__(
        self,
        address: str,
        *,
        seed: int,
        model_name: str,
        tally: Tally,
        keys: Sequence[str | None] = (None,),
    ) -> None:
        self._address = address
        self._random = random.Random(seed)
        self._model_name = model_name
        self._keys = keys
        self._tally = tally

    async def attack(self) -> None:
        """Make one call, and note how it ended."""
        attacks = [self._stay, self._leave, self._run_out_of_time, self._send_a_part]
        attack = self._random.choices(attacks, weights=[4, 10, 4, 1])[0]
        path = self._random.choice([CHAT, TEXT])
        async with asyncio.timeout(PATIENCE_SECONDS), raw_http(self._address) as http:
            ending = await attack(http, path)
        self._tally.endings[f"http {attack.__name__.removeprefix('_')}: {ending}"] += 1

    async def _stay(self, http: RawHttp, path: str) -> str:
        """Read all of it, and look at every number."""
        fields = self._fields(path)
        body = post_body(fields)
        http.send(path, body, key=self._key())
        answer = await http.answer()
        if answer.status != 200:
            assert answer.status == 429, answer
            return "refused"
        texts, usage = read_stream(answer) if fields["stream"] else read_whole(answer)
        assert sorted(texts) == list(range(fields["n"]))
        assert usage["completion_tokens"] == fields["n"] * fields["max_tokens"]
        assert 0 <= usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]
        # The first choices of a greedy request are the same, and so is the answer streamed and whole.
        asked = post_body({"path": path} | fields | {"stream": None, "stream_options": None, "n": None})
        assert len(set(texts.values())) == 1
        self._tally.note_answer(asked, texts[0])
        return "answered"

    async def _leave(self, http: RawHttp, path: str) -> str:
        """Go at some point: at once, before the answer, or after a piece of it, politely or not."""
        http.send(path, post_body(self._fields(path)), key=self._key())
        with contextlib.suppress(ConnectionError):
            await http.writer.drain()
            if self._random.random() < 0.4:
                for _ in range(self._random.randrange(20)):
                    await asyncio.sleep(0)
            else:
                for _ in range(self._random.randrange(1, 5)):
                    await http.reader.read(self._random.randrange(1, 600))
        if self._random.random() < 0.5:
            http.writer.close()
        return "left"

    async def _run_out_of_time(self, http: RawHttp, path: str) -> str:
        http.send(path, post_body(self._fields(path)), key=self._key())
        try:
            async with asyncio.timeout(self._random.uniform(0.0005, 0.15)):
                answer = await http.answer()
        except TimeoutError:
            return "left"
        return "answered" if answer.status == 200 else "refused"

    async def _send_a_part(self, http: RawHttp, path: str) -> str:
        """The body never arrives as a whole."""
        http.send(path, post_body(self._fields(path)), key=self._key(), part=self._random.uniform(0.0, 0.99))
        with contextlib.suppress(ConnectionError, h11.RemoteProtocolError):
            await http.writer.drain()
            http.writer.write_eof()
            answer = await http.answer()
            assert answer.status == 400, answer
        return "left"

    def _key(self) -> str | None:
        return self._random.choice(self._keys)

    def _fields(self, path: str) -> dict[str, Any]:
        """A greedy request: one of a few beginnings, cut somewhere, and a few letters of its own."""
        pick = self._random
        beginning = "abcdefgh"[pick.randrange(NUM_PREFIXES)] * pick.randrange(1, PREFIX_TOKENS)
        text = beginning + "".join(pick.choices("xyz", k=pick.randrange(1, 4)))
        stream = pick.random() < 0.6
        what = {"prompt": text} if path == TEXT else {"messages": [{"role": "user", "content": text}]}
        return what | {
            "model": self._model_name,
            "temperature": 0,
            "ignore_eos": True,
            "max_tokens": pick.randrange(1, MAX_TOKENS),
            "n": pick.choice([1, 1, 1, 3]),
            "stream": stream,
            **({"stream_options": {"include_usage": True}} if stream else {}),
        }


def read_whole(answer: HttpAnswer) -> tuple[dict[int, str], dict[str, Any]]:
    """The texts by index, and the usage, of an answer that is one object."""
    whole = json.loads(answer.body)
    texts = {choice["index"]: _text(choice) for choice in whole["choices"]}
    assert all(choice["finish_reason"] == "length" for choice in whole["choices"])
    return texts, whole["usage"]


def read_stream(answer: HttpAnswer) -> tuple[dict[int, str], dict[str, Any]]:
    """The same of one in events, each of whose choices has to end once, and the usage come last."""
    *events, last = events_of(answer.body.decode())
    texts: dict[int, str] = {}
    ended: set[int] = set()
    for event in events:
        for choice in event["choices"]:
            index = choice["index"]
            assert index not in ended, "a piece after the end of its choice"
            texts[index] = texts.get(index, "") + _text(choice)
            if choice["finish_reason"] is not None:
                ended.add(index)
    assert not last["choices"]
    assert ended == set(texts)
    return texts, last["usage"]


def _text(choice: dict[str, Any]) -> str:
    if "text" in choice:
        return str(choice["text"])
    return str(choice["message" if "message" in choice else "delta"].get("content") or "")

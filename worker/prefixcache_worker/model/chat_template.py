"""A conversation as the text its model was trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from prefixcache_worker.errors import ConfigError, InvalidRequestError
from prefixcache_worker.model.tool_text import tools_as_text


class ChatTemplate:
    """A model's own Jinja template. It comes from a model file, so it runs in a sandbox."""

    def __init__(self, template: str, *, special_tokens: Mapping[str, str], source: str) -> None:
        """`special_tokens`: what `bos_token`, `eos_token` and so on stand for inside the template.

        Raises ConfigError naming `source` if the template cannot be compiled.
        """
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        try:
            self._template = environment.from_string(template)
            self.takes_tools = "tools" in meta.find_undeclared_variables(environment.parse(template))
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"{source}: the chat template cannot be compiled ({error}).") from error
        self._special_tokens = dict(special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """The conversation as text, ready for `Tokenizer.encode` with `add_special=False`.

        `messages` have the keys "role" and "content", and may have "name", "tool_calls" and "tool_call_id".
        `add_generation_prompt` opens the assistant's turn. A template that does not take tools gets them,
        calls and results as text (see `tool_text`).
        The template alone says whether the text begins with a BOS token.
        Raises InvalidRequestError if the template refuses the messages or fails on them.
        """
        turns = [dict(message) for message in messages]
        if not self.takes_tools and (tools or any(_is_about_tools(turn) for turn in turns)):
            turns, tools = tools_as_text(turns, tools), ()
        try:
            return self._template.render(
                messages=turns,
                tools=list(tools) or None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except jinja2.TemplateError as error:
            raise InvalidRequestError("chat", f"the model's chat template refuses it: {error}.") from error
        except Exception as error:  # a template is a program of its own and may raise anything
            reason = f"{type(error).__name__}: {error}"
            raise InvalidRequestError(
                "chat", f"the model's chat template fails on it ({reason}); send text or token_ids"
            ) from error


def _is_about_tools(turn: Mapping[str, Any]) -> bool:
    return turn["role"] == "tool" or "tool_calls" in turn


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Jinja's own filter would escape HTML characters, which no model has seen."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(date_format: str) -> str:
    return datetime.now().strftime(date_format)

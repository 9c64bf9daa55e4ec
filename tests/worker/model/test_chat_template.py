"""Rendered conversations against transformers, and what a template may and may not do."""

from __future__ import annotations

import pytest
from support.texts import texts_in_many_scripts
from transformers.utils.chat_template_utils import render_jinja_template

from prefixcache_worker.errors import ConfigError, InvalidRequestError
from prefixcache_worker.model.chat_template import ChatTemplate

USER = {"role": "user", "content": "Hi <b>there</b> & \"you\" 'all'"}
ASSISTANT = {"role": "assistant", "content": "Hello.\n"}
SYSTEM = {"role": "system", "content": "  Be kind.  "}
CONVERSATIONS = [
    [USER],
    [SYSTEM, USER],
    [SYSTEM],
    [USER, ASSISTANT, USER],
    [SYSTEM, USER, ASSISTANT, USER],
    *([SYSTEM, {"role": "user", "content": text}] for text in texts_in_many_scripts(60) if text),
]
LOOPS_AND_MACROS = """\
{%- macro turn(message) %}
    [{{ message.role | upper }}] {{ message.content | trim | tojson }}
{%- endmacro %}
{{- bos_token }}
{% for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {{- turn(message) }}
{% endfor %}
{% if add_generation_prompt %}
    [ASSISTANT]
{% endif %}
"""


def chat_template(template: str) -> ChatTemplate:
    return ChatTemplate(template, special_tokens={"bos_token": "<s>", "eos_token": "</s>"}, source="file")


@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_default_model_ids_equal_transformers(default_model, reference_tokenizer, add_generation_prompt):
    for messages in CONVERSATIONS:
        text = default_model.chat_template.render(messages, add_generation_prompt=add_generation_prompt)
        expected = reference_tokenizer.apply_chat_template(
            messages, add_generation_prompt=add_generation_prompt, tokenize=True, return_dict=False
        )
        assert default_model.tokenizer.encode(text, add_special=False) == expected


@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_whitespace_macros_loops_and_json_equal_transformers(add_generation_prompt):
    for messages in CONVERSATIONS[:5]:
        expected, _ = render_jinja_template(
            conversations=[messages],
            chat_template=LOOPS_AND_MACROS,
            add_generation_prompt=add_generation_prompt,
            bos_token="<s>",
        )
        text = chat_template(LOOPS_AND_MACROS).render(messages, add_generation_prompt=add_generation_prompt)
        assert text == expected[0]
        assert text.startswith("<s>")


def test_a_template_may_refuse_a_conversation():
    template = chat_template("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequestError, match=r"chat: .* refuses it: roles must alternate") as info:
        template.render([USER], add_generation_prompt=True)
    assert info.value.field_name == "chat"


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ messages + 1 }}", "TypeError"),
        ("{% for i in range(999999999) %}{% endfor %}", "OverflowError"),
        ("{{ messages | length // 0 }}", "ZeroDivisionError"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "RecursionError"),
    ],
)
def test_a_template_that_fails_is_no_error_of_the_worker(template: str, name: str):
    with pytest.raises(InvalidRequestError, match=rf"chat: .* fails on it \({name}: .*send text") as info:
        chat_template(template).render([USER], add_generation_prompt=True)
    assert info.value.field_name == "chat"


def test_a_template_cannot_leave_the_sandbox():
    template = chat_template("{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(InvalidRequestError, match="unsafe"):
        template.render([USER], add_generation_prompt=True)


def test_a_template_cannot_change_the_messages():
    messages = [dict(USER)]
    with pytest.raises(InvalidRequestError):
        chat_template("{{ messages.append(1) }}").render(messages, add_generation_prompt=True)
    assert messages == [USER]


def test_a_template_may_ask_for_the_date():
    text = chat_template("{{ strftime_now('%Y') }}").render([USER], add_generation_prompt=True)
    assert len(text) == 4
    assert text.isdigit()


def test_a_broken_template_is_refused_when_it_is_loaded():
    with pytest.raises(ConfigError, match="file: the chat template cannot be compiled"):
        chat_template("{% for %}")

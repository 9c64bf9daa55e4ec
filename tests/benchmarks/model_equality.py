"""The default model computes what transformers computes from the same file: logits, token ids, chat ids.

Usage: model_equality.py [--json FILE]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from report import Row, print_rows
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `support`, as pytest has it

from support.dense_attention import dense_logits
from support.texts import texts_in_many_scripts
from support.transformers_reference import load_reference_model, load_reference_tokenizer
from transformers import PreTrainedTokenizerBase

from prefixcache_worker.model.default_model import default_model_path
from prefixcache_worker.model.loader import LoadedModel, load_model

TOLERANCE = 1e-3
PROMPT_LENGTHS = (1, 7, 64, 257, 600)
NUM_TEXTS = 300
STORY = "The airline lets a passenger change a booking up to 24 hours before departure, and asks for a fee. "


def logit_rows(loaded: LoadedModel) -> list[Row]:
    """The largest difference of any logit, prompt by prompt."""
    reference = load_reference_model(default_model_path())
    story = loaded.tokenizer.encode(STORY * 40, add_special=True)
    rows = []
    for num_tokens in track(PROMPT_LENGTHS, description="logits"):
        token_ids = story[:num_tokens]
        with torch.inference_mode():
            expected = reference(torch.tensor([token_ids])).logits[0]
        difference = (dense_logits(loaded.model, token_ids) - expected).abs().max().item()
        rows.append(
            Row(
                name=f"largest logit difference, prompt of {num_tokens}",
                value=difference,
                unit="logit",
                bar=f"<= {TOLERANCE}",
                holds=difference <= TOLERANCE,
                note="against transformers, float32, every token and vocabulary entry",
            )
        )
    return rows


def tokenizer_row(loaded: LoadedModel, reference: PreTrainedTokenizerBase) -> Row:
    texts = texts_in_many_scripts(NUM_TEXTS)
    equal = [
        loaded.tokenizer.encode(text, add_special=True) == reference.encode(text)
        for text in track(texts, description="texts")
    ]
    return count_row("texts with equal ids", equal, note="with the pre-tokenizer that the file names")


def chat_row(loaded: LoadedModel, reference: PreTrainedTokenizerBase) -> Row:
    assert loaded.chat_template is not None
    equal = []
    for text in track(texts_in_many_scripts(NUM_TEXTS), description="chats"):
        messages = [
            {"role": "system", "content": STORY},
            {"role": "user", "content": text},
            {"role": "assistant", "content": STORY},
            {"role": "user", "content": "And then?"},
        ]
        for turns in (messages[:2], messages[1:2], messages):
            rendered = loaded.chat_template.render(turns, add_generation_prompt=True)
            expected = reference.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
            equal.append(loaded.tokenizer.encode(rendered, add_special=False) == expected)
    return count_row("conversations with equal ids", equal, note="against apply_chat_template")


def count_row(name: str, equal: list[bool], *, note: str) -> Row:
    bar = f"= {len(equal)}"
    return Row(name=name, value=sum(equal), unit="count", bar=bar, holds=all(equal), note=note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    arguments = parser.parse_args()
    loaded = load_model()
    reference = load_reference_tokenizer(default_model_path())
    rows = [*logit_rows(loaded), tokenizer_row(loaded, reference), chat_row(loaded, reference)]
    print_rows(rows, arguments.json)


if __name__ == "__main__":
    main()

"""What smaller formats cost in quality, of KV rows and of weights: each against fp32, on the default model.

Logits are compared token by token over the same text, greedy answers token by token from the same prompts.

Usage: quality.py [--data FOLDER_WITH_PROMPTS_CSV] [--prompts 50] [--weights bf16 int8] [--json FILE]
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import torch
from report import Row, print_rows
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `support`, as pytest has it

from support.dense_attention import dense_logits
from support.kv_formats import FORMATS
from support.rounded_model import RoundedModel

from prefixcache import Namespace, PrefixCache
from prefixcache_worker.attention.backend import choose_backend
from prefixcache_worker.attention.calibration import CALIBRATION_TEXT, calibrate
from prefixcache_worker.attention.kv_format import FP32, KvDtype, KvFormat, KvScales
from prefixcache_worker.attention.kv_store import NO_FIXED_SCALES, FixedScales, KvStore
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.engine.engine_config import EngineConfig
from prefixcache_worker.engine.request import Delta, Request, SamplingParams, StopConditions
from prefixcache_worker.model.loader import LoadedModel, load_model
from prefixcache_worker.model.model import Model
from prefixcache_worker.model.tokenizer import Tokenizer
from prefixcache_worker.model.weight_format import WeightFormat

MAX_PROMPT_TOKENS = 96
NUM_OUTPUT_TOKENS = 32
NUM_SCORED_TEXTS = 6
"""So many prompts, with their answers, are scored token by token: logits of a token are 49,152 numbers."""
MAX_RATIO_TO_FP16 = {KvDtype.INT8: 0.52, KvDtype.INT4: 0.27}
MIN_COSINE = {KvFormat(KvDtype.INT8, KvScales.TOKEN_HEAD): 0.999}
WEIGHT_FORMATS = get_args(WeightFormat)[1:]
"""All but fp32."""

SENTENCES = (
    "A passenger may change a booking up to a day before departure, and pays a fee of twenty euros.",
    "def median(values):\n    ordered = sorted(values)\n    return ordered[len(ordered) // 2]",
    "The harbour lies to the north of the old town, behind a wall that was built in 1654.",
    "You are a patient teacher. Explain why the sky is blue to a child of seven, without any formula.",
    '{"order": 4711, "items": [{"name": "lamp", "price": 39.5}, {"name": "chair", "price": 120}]}',
    "To make bread, mix flour, water, salt and yeast, and let the dough rest until it has doubled.",
    "Question: which planet has the most moons, and who discovered the first of them? Answer:",
    "The committee met on Tuesday. It agreed on the budget, and put off the vote about the new bridge.",
    "Whoever keeps bees learns to watch the weather, the flowers, and above all the bees themselves.",
    "SELECT city, AVG(rent) FROM flats WHERE rooms >= 3 GROUP BY city ORDER BY 2 DESC;",
)


def read_prompts(folder: str | None, count: int, tokenizer: Tokenizer) -> list[list[int]]:
    """`count` prompts, from all over the folder's prompts.csv or made of our own sentences."""
    if folder is None:
        pairs = [f"{first}\n{second}" for first in SENTENCES for second in SENTENCES if first is not second]
        texts = pairs[:: max(1, len(pairs) // count)]
    else:
        csv.field_size_limit(1 << 24)
        with open(Path(folder) / "prompts.csv", newline="", encoding="utf-8") as file:
            texts = [row["prompt"] for row in csv.DictReader(file) if len(row["prompt"]) >= 200]
        texts = texts[:: max(1, len(texts) // count)]
    return [tokenizer.encode(text, add_special=True)[:MAX_PROMPT_TOKENS] for text in texts[:count]]


def answer(
    model: Model, kv_format: KvFormat, fixed_scales: FixedScales, prompts: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Greedy answers of an engine over a pool of this format, all prompts in one batch."""
    num_blocks = len(prompts) * -(-(MAX_PROMPT_TOKENS + NUM_OUTPUT_TOKENS) // 16)
    store = KvStore(
        model.attention_shape,
        num_blocks=num_blocks,
        block_size=16,
        kv_format=kv_format,
        fixed_scales=fixed_scales,
    )
    engine = Engine(
        model=model,
        cache=PrefixCache(num_blocks=num_blocks, block_size=16),
        kv_store=store,
        token_bytes=lambda token: b"",
        eos_token_ids=(),
        config=EngineConfig(max_running=len(prompts)),
        attention=choose_backend("auto", store),
    )
    for i, prompt in enumerate(prompts):
        request = Request(
            request_id=str(i),
            namespace=Namespace(model="model", tenant="tenant"),
            prompt_token_ids=tuple(prompt),
            sampling=SamplingParams(temperature=0),
            stop_conditions=StopConditions(max_tokens=NUM_OUTPUT_TOKENS, ignore_eos=True),
        )
        engine.add(i, request)
    answers: list[list[int]] = [[] for _ in prompts]
    while engine.has_work:
        for key, event in engine.step():
            if isinstance(event, Delta):
                answers[key] += event.token_ids  # type: ignore[index]
    return answers


@dataclass
class LogitErrors:
    """One figure for each token of the scored texts."""

    cosines: list[float] = field(default_factory=list)
    largest: list[float] = field(default_factory=list)

    def add(self, logits: torch.Tensor, expected: torch.Tensor) -> None:  # [num_tokens, vocabulary_size]
        self.cosines += torch.cosine_similarity(logits.double(), expected.double(), dim=1).tolist()
        self.largest += (logits - expected).abs().amax(1).tolist()


def logit_errors(
    model: Model, variants: dict[str, Model], texts: Sequence[Sequence[int]]
) -> dict[str, LogitErrors]:
    """How far each variant's logits are from the model's, over every token of the texts."""
    errors = {name: LogitErrors() for name in variants}
    for text in track(texts, "logits", transient=True):
        expected = dense_logits(model, text)
        for name, variant in variants.items():
            errors[name].add(dense_logits(variant, text), expected)
    return errors


def size_row(kv_format: KvFormat, model: Model) -> Row:
    num_bytes = kv_format.block_bytes(model.attention_shape, 1)
    ratio = num_bytes / KvFormat(KvDtype.FP16).block_bytes(model.attention_shape, 1)
    bar = MAX_RATIO_TO_FP16.get(kv_format.dtype)
    return Row(
        name=f"KV {kv_format.name}, size",
        value=ratio,
        unit="of fp16",
        bar=bar and f"<= {bar:g}",
        holds=None if bar is None else ratio <= bar,
        note=f"{num_bytes:,} bytes a token, scales included",
    )


def cosine_row(name: str, errors: LogitErrors, bar: float | None = None) -> Row:
    mean = statistics.mean(errors.cosines)
    return Row(
        name=f"{name}, cosine of logits",
        value=mean,
        unit="on average",
        spread=f"{min(errors.cosines):.5f} to {max(errors.cosines):.5f}",
        bar=bar and f">= {bar:g}",
        holds=None if bar is None else mean >= bar,
        note=f"{1 - mean:.1e} below 1; largest error of a logit {max(errors.largest):.2g}, "
        f"of a median token {statistics.median(errors.largest):.2g}; {len(errors.cosines)} tokens",
    )


def agreement_row(name: str, answers: list[list[int]], expected: list[list[int]]) -> Row:
    """Equal tokens by place. Behind the first difference an answer is another text: few are equal there."""
    firsts, num_equal = [], 0
    for ours, theirs in zip(answers, expected, strict=True):
        equal = [a == b for a, b in zip(ours, theirs, strict=True)]
        num_equal += sum(equal)
        firsts.append(equal.index(False) if False in equal else len(equal))
    num_whole = sum(first == NUM_OUTPUT_TOKENS for first in firsts)
    return Row(
        name=f"{name}, greedy agreement",
        value=num_equal / (len(answers) * NUM_OUTPUT_TOKENS),
        unit="of tokens equal",
        note=f"{num_whole} of {len(answers)} answers of {NUM_OUTPUT_TOKENS} tokens equal; "
        f"the first difference at token {statistics.median(firsts):g} (median), {min(firsts)} (earliest)",
    )


def kv_rows(
    loaded: LoadedModel,
    prompts: list[list[int]],
    expected: list[list[int]],  # answers of fp32
    texts: list[list[int]],
) -> list[Row]:
    model = loaded.model
    text_ids = loaded.tokenizer.encode(CALIBRATION_TEXT, add_special=True)
    formats = {kv_format: calibrate(model, kv_format, text_ids=text_ids) for kv_format in FORMATS[1:]}
    kinds = {"": ("keys", "values"), ", keys alone": ("keys",), ", values alone": ("values",)}
    variants: dict[str, Model] = {
        f"KV {kv_format.name}{suffix}": RoundedModel(model, kv_format, fixed_scales, kinds=rounded)
        for kv_format, fixed_scales in formats.items()
        for suffix, rounded in kinds.items()
    }
    errors = logit_errors(model, variants, texts)
    rows = []
    for kv_format, fixed_scales in track(formats.items(), "greedy answers", transient=True):
        rows.append(size_row(kv_format, model))
        for suffix in kinds:
            name = f"KV {kv_format.name}{suffix}"
            rows.append(cosine_row(name, errors[name], None if suffix else MIN_COSINE.get(kv_format)))
        answers = answer(model, kv_format, fixed_scales, prompts)
        rows.append(agreement_row(f"KV {kv_format.name}", answers, expected))
    return rows


def weight_rows(
    model: Model,
    weight_formats: Sequence[WeightFormat],
    prompts: list[list[int]],
    expected: list[list[int]],  # answers of fp32
    texts: list[list[int]],
) -> list[Row]:
    rows = []
    for weight_format in track(weight_formats, "weights", transient=True):
        name = f"weights {weight_format}"
        variant = load_model(None, weight_format=weight_format).model
        rows.append(cosine_row(name, logit_errors(model, {name: variant}, texts)[name]))
        rows.append(agreement_row(name, answer(variant, FP32, NO_FIXED_SCALES, prompts), expected))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--weights", nargs="*", choices=WEIGHT_FORMATS, default=WEIGHT_FORMATS)
    parser.add_argument("--json")
    args = parser.parse_args()
    loaded = load_model(None)
    prompts = read_prompts(args.data, args.prompts, loaded.tokenizer)
    expected = answer(loaded.model, FP32, NO_FIXED_SCALES, prompts)
    texts = [[*prompt, *tokens] for prompt, tokens in zip(prompts, expected, strict=True)][:NUM_SCORED_TEXTS]
    rows = kv_rows(loaded, prompts, expected, texts)
    rows += weight_rows(loaded.model, args.weights, prompts, expected, texts)
    print_rows(rows, args.json)


if __name__ == "__main__":
    main()

"""Packs as tasks of lm_eval 0.4.13.

import lm_eval
from rlvr.adapters.lm_eval import pack_task

lm_eval.simple_evaluate(model="hf", model_args="pretrained=...", tasks=[pack_task("gsm8k")], apply_chat_template=True)

With repeats=N each problem has N completions, sampled at temperature 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.core.types import Prompt

from .judges import import_program, judge_of_one_turn


def pack_task(
    name: str,
    *,
    part: str = "test",
    repeats: int = 1,
    generation: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Return a task of a part of the pack `name`. options: of `judge`.

    Three metrics are means over `repeats` completions of a problem, then over problems: `score`, `acc` (the share of
    correct completions), and `unscored` (the share of verdicts without score, which the others leave out). One
    completion is greedy, several are sampled at temperature 1. generation: settings of lm_eval's generate_until
    (temperature, top_p, max_gen_toks, ...) in place of these. num_fewshot is ignored: lm_eval would show the ids of
    problems as their answers. Raises ValueError for a pack that is played in turns, a verifier of whole batches,
    `repeats` below 1, several greedy completions, and if lm_eval is not installed.
    """
    if repeats < 1:
        raise ValueError(f"repeats {repeats}: expected at least 1")
    settings = _generation_kwargs(repeats, generation or {})
    make_task = import_program("lm_eval.api.task", "lm_eval").ConfigurableTask
    pack = judge_of_one_turn(name, "lm_eval", **options)

    def data(**unused: Any) -> Any:
        from datasets import Dataset

        return {"test": Dataset.from_list([{"text": _text(p.prompt), "problem": p.id} for p in pack.part(part)])}

    def process(doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, float]:
        texts = results[0] if isinstance(results[0], list) else results
        verdicts = pack.verdicts([(pack.problem(doc["problem"]), text) for text in texts])
        scores = [verdict.score for verdict in verdicts if verdict.score is not None]
        count = len(scores)
        return {
            "score": sum(scores) / count if count else math.nan,
            "acc": sum(verdict.correct for verdict in verdicts) / count if count else math.nan,
            "unscored": 1 - count / len(verdicts),
        }

    metrics = [
        {"metric": metric, "aggregation": mean_of_scored, "higher_is_better": metric != "unscored"}
        for metric in ("score", "acc", "unscored")
    ]
    return make_task(
        config={
            "task": name,
            "custom_dataset": data,
            "test_split": "test",
            "doc_to_text": "{{text}}",
            "doc_to_target": "{{problem}}",
            "output_type": "generate_until",
            "generation_kwargs": settings,
            "num_fewshot": 0,
            "repeats": repeats,
            "filter_list": [{"name": "all", "filter": [{"function": "take_first_k", "k": repeats}]}],
            "process_results": process,
            "metric_list": metrics,
            "metadata": {"version": 1.0},
        }
    )


def _generation_kwargs(repeats: int, generation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of generate_until. The temperature is always set, since lm_eval's default is 0.

    Several completions have no seed: lm_eval sends one seed with every request, and a server that honours it would
    repeat one completion. Raises ValueError for several greedy completions.
    """
    temperature = float(generation.get("temperature", 1.0 if repeats > 1 else 0.0))
    sampled = bool(generation.get("do_sample", temperature > 0))
    if repeats > 1 and not (sampled and temperature > 0):
        raise ValueError(
            f"repeats {repeats} of a greedy decoding are {repeats} equal completions; "
            "expected a temperature above 0 (and no do_sample=False) in generation, or repeats=1"
        )
    settings = {"until": [], "max_gen_toks": 2048, **generation, "temperature": temperature, "do_sample": sampled}
    return {"seed": None, **settings} if repeats > 1 else settings


def mean_of_scored(values: Sequence[float]) -> float:
    """Return the mean of the values that are numbers, NaN where none is."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _text(prompt: Prompt) -> str:
    """Return a prompt as one text: lm_eval makes the messages itself."""
    return prompt if isinstance(prompt, str) else "\n\n".join(message["content"] for message in prompt)

"""The model's context length, and prompts that are too long for it."""

from __future__ import annotations

import statistics
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from rlvr.config import Config
from rlvr.core.types import Problem, Prompt, Task

from .rendering import Rendering

# Rope types whose factor is not yet in max_position_embeddings.
STRETCHING = ("linear", "dynamic", "yarn")
# Tokens that a tokenizer may add around a text, besides the template's.
SLACK = 8
TYPICAL = 64


def context_limit(config: Any) -> int | None:
    """Return the tokens, prompt and completion, that a transformers config has positions for; None: no limit.

    The tokenizer's model_max_length is ignored: it is often lower than what the model was trained for.
    """
    text = config.get_text_config()
    positions = getattr(text, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions <= 0:
        return None
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    if isinstance(rope, dict) and rope.get("rope_type", rope.get("type")) in STRETCHING:
        trained = rope.get("original_max_position_embeddings") or positions
        return max(positions, int(trained * float(rope.get("factor", 1.0))))
    return positions


def run_limit(config: Config, model_config: Any) -> int | None:
    """Return `context_limit`, or vLLM's max_model_len where that is lower."""
    limits = [context_limit(model_config), config.sampler.max_model_len or None]
    return min((limit for limit in limits if limit), default=None)


def longer_than(rendering: Rendering, problems: Iterable[Problem], limit: int) -> list[tuple[Problem, int]]:
    """Return the problems whose prompt has more than `limit` tokens, with their number of tokens.

    A text has at most as many tokens as bytes, so most prompts need not be rendered.
    """
    frame: dict[bool, int] = {}
    found = []
    for problem in problems:
        prompt = problem.prompt
        plain = isinstance(prompt, str)
        if plain not in frame:
            frame[plain] = len(rendering.render("x" if plain else [{"role": "user", "content": "x"}]))
        messages = 1 if isinstance(prompt, str) else len(prompt)
        if num_bytes(prompt) + messages * (frame[plain] + SLACK) > limit:
            tokens = len(rendering.render(prompt))
            if tokens > limit:
                found.append((problem, tokens))
    return found


def num_bytes(prompt: Prompt) -> int:
    """Return the bytes of a prompt in UTF-8, or of its NFKC form (some tokenizers apply it) if that is longer."""
    text = prompt if isinstance(prompt, str) else "".join(f"{m['role']}{m['content']}" for m in prompt)
    if text.isascii():
        return len(text)
    return max(len(form.encode("utf-8", "surrogatepass")) for form in (text, unicodedata.normalize("NFKC", text)))


def leave_out_long(
    rendering: Rendering, problems: Sequence[Problem], max_tokens: int, flag: str
) -> tuple[Sequence[Problem], int]:
    """Return the problems whose prompt has at most `max_tokens` tokens, and how many were left out.

    Raises ValueError where none is left.
    """
    long = {problem.id for problem, _ in longer_than(rendering, problems, max_tokens)}
    if not long:
        return problems, 0
    kept = [problem for problem in problems if problem.id not in long]
    if not kept:
        raise ValueError(f"{flag} {max_tokens}: all {len(problems)} problems have longer prompts; raise it")
    return kept, len(long)


def check_fit(
    rendering: Rendering, problems: Sequence[Problem], new_tokens: int, limit: int | None, flags: tuple[str, str]
) -> None:
    """Raise ValueError, naming the longest prompt, where a prompt and `new_tokens` together exceed `limit`.

    flags: those that set the new tokens and the longest prompt, for the advice.
    """
    if limit is None:
        return
    room = limit - new_tokens
    if room < 1:
        raise ValueError(
            f"{flags[0]} {new_tokens}: the model reads {limit} tokens, prompt and completion; set it lower"
        )
    long = longer_than(rendering, problems, room)
    if long:
        problem, tokens = max(long, key=lambda item: item[1])
        leave_out = f", or leave them out with {flags[1]} {room}" if len(long) < len(problems) else ""
        raise ValueError(
            f"problem {problem.id!r} has a prompt of {tokens} tokens; with {new_tokens} new ones that is more than the "
            f"{limit} that the model reads ({len(long)} of {len(problems)} problems are too long): lower {flags[0]}"
            f"{leave_out}"
        )


def fit_task(config: Config, task: Task, rendering: Rendering, limit: int | None, say: Callable[[str], None]) -> Task:
    """Return the task without prompts above rollout.max_prompt_tokens. Says how many, and how long prompts are.

    Raises ValueError where a prompt with its completion, or a demonstration, does not fit the context.
    """
    r, longest = config.rollout, config.rollout.max_prompt_tokens
    if longest is not None:
        train, dropped = leave_out_long(rendering, task.train, longest, "--rollout.max-prompt-tokens")
        test, dropped_test = task.test, 0
        if len(task.test):
            test, dropped_test = leave_out_long(rendering, task.test, longest, "--rollout.max-prompt-tokens")
        task = replace(task, train=train, test=test)
        say(
            f"prompts of more than {longest} tokens are left out: {dropped} of {dropped + len(train)} to train on, "
            f"{dropped_test} of {dropped_test + len(test)} held out"
        )
    flags = ("--rollout.max-new-tokens", "--rollout.max-prompt-tokens")
    check_fit(rendering, task.train, r.max_new_tokens, limit, flags)
    if config.eval.every >= 0:
        held_out = task.test[: config.eval.num_problems]
        check_fit(rendering, held_out, config.eval_sampling().max_new_tokens, limit, flags)
    if config.sft.steps and limit is not None:
        check_demonstrations(rendering, task.demonstrations, limit)
    say(describe_lengths(rendering, task.train, r.max_new_tokens, limit))
    prompts = [problem.prompt for problem in (*task.train[:TYPICAL], *task.test[:TYPICAL])]
    if warning := rendering.warning_of_unknown(prompts, "prompts"):
        say(f"WARNING {warning}")
    return task


def check_demonstrations(
    rendering: Rendering, demonstrations: Sequence[tuple[Problem, str | Sequence[str]]], limit: int
) -> None:
    """Raise ValueError for a demonstration that exceeds the context, by the tokens of the model's own turns."""
    for problem, said in demonstrations:
        text = said if isinstance(said, str) else "".join(said)
        if num_bytes(problem.prompt) + num_bytes(text) <= limit // 2:
            continue
        tokens = len(rendering.render(problem.prompt)) + len(rendering.encode(text)) + 1
        if tokens > limit:
            raise ValueError(
                f"demonstration {problem.id!r} has {tokens} tokens and the model reads {limit}; shorten it, or "
                "leave it out"
            )


def describe_lengths(rendering: Rendering, problems: Sequence[Problem], new_tokens: int, limit: int | None) -> str:
    """Return a line on the lengths of the first few prompts."""
    lengths = [len(rendering.render(problem.prompt)) for problem in problems[:TYPICAL]]
    reads = "" if limit is None else f"; the model reads {limit}"
    return (
        f"a typical prompt has {statistics.median_high(lengths)} tokens (longest of {len(lengths)}: {max(lengths)}), a "
        f"completion at most {new_tokens}{reads}"
    )

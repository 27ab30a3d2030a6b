"""Requests with instructions that a program can check, for a pretrained chat model: kinds to train on, and other kinds.

    Write a few sentences about rain. Use at least 15 words. Do not use any commas.
    Explain why people like tea. Use at least 15 words. Begin and end your answer with double quotation marks.

The instructions and their checks are IFEval's (verifier `instructions`). A least number of words is asked for in each
prompt: without it, a word or two would follow nearly every other instruction. `checked_instructions` has the
kinds of TRAINED, one or two of them in a prompt; `unseen_instructions`, which is test only, those of UNSEEN, so that a
mixture of both tells what carries over.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping
from typing import Any

from rlvr.core.registry import register_task
from rlvr.core.types import Problem, Task

from ..base import generate_task

Drawn = tuple[str, tuple[str, ...], tuple[dict[str, Any], ...]]  # the prompt, names of checks, their parameters
# Draws an instruction: its text, and the parameters of its check.
Maker = Callable[[random.Random], tuple[str, dict[str, Any]]]

LEAST_WORDS = 15
TOPICS = (
    "rain bread music trains winter books tea gardens birds bridges sleep maps chess rivers cheese bicycles clocks "
    "letters islands soup forests markets shoes stars paper dogs lamps apples football painting"
).split()
REQUESTS = (
    "Write a few sentences about {topic}.",
    "Explain why people like {topic}.",
    "Tell a friend something about {topic}.",
    "Describe {topic} to a child.",
    "Write a short advertisement for {topic}.",
    "What should a beginner know about {topic}?",
)
ENDINGS = ("That is all.", "Ask me for more.", "I hope this helps.", "Thank you for reading.")
WORDS = "always often small people because simple early quiet every together".split()


def _say(text: str) -> Maker:
    """Return the maker of an instruction without parameters."""
    return lambda stream: (text, {})


def _end(stream: random.Random) -> tuple[str, dict[str, Any]]:
    phrase = stream.choice(ENDINGS)
    return f'End your answer with the exact phrase "{phrase}"', {"end_phrase": phrase}


def _keywords(stream: random.Random) -> tuple[str, dict[str, Any]]:
    words = stream.sample(WORDS, 2)
    return "Use the words {} and {}.".format(*words), {"keywords": words}


def _bullets(stream: random.Random) -> tuple[str, dict[str, Any]]:
    count = stream.randint(2, 4)
    return f"Write exactly {count} bullet points, each on a line that begins with *.", {"num_bullets": count}


def _short(stream: random.Random) -> tuple[str, dict[str, Any]]:
    most = stream.choice((30, 40, 50))
    return f"Use at most {most} words.", {"num_words": most, "relation": "at most"}


def _forbidden(stream: random.Random) -> tuple[str, dict[str, Any]]:
    words = stream.sample(["and", "the", "is", "of", "they", "can"], 2)
    return "Do not use the words {} and {}.".format(*words), {"forbidden_words": words}


def _highlights(stream: random.Random) -> tuple[str, dict[str, Any]]:
    count = stream.randint(2, 3)
    return f"Highlight at least {count} words with *asterisks*.", {"num_highlights": count}


def _placeholders(stream: random.Random) -> tuple[str, dict[str, Any]]:
    count = stream.randint(2, 3)
    text = f"Leave at least {count} placeholders in square brackets, such as [name]."
    return text, {"num_placeholders": count}


def _sentences(stream: random.Random) -> tuple[str, dict[str, Any]]:
    most = stream.randint(3, 5)
    return f"Write fewer than {most} sentences.", {"num_sentences": most, "relation": "less than"}


TRAINED: dict[str, Maker] = {
    "punctuation:no_comma": _say("Do not use any commas."),
    "change_case:english_lowercase": _say("Write in lowercase letters only."),
    "startend:end_checker": _end,
    "startend:quotation": _say("Begin and end your answer with double quotation marks."),
    "keywords:existence": _keywords,
    "detectable_format:number_bullet_lists": _bullets,
    "detectable_format:title": _say("Give your answer a title in double angular brackets, such as <<a title>>."),
    "length_constraints:number_words": _short,
}
UNSEEN: dict[str, Maker] = {
    "change_case:english_capital": _say("Write in capital letters only."),
    "keywords:forbidden_words": _forbidden,
    "detectable_format:number_highlighted_sections": _highlights,
    "detectable_content:postscript": lambda stream: (
        "Add a postscript at the end that begins with P.S.",
        {"postscript_marker": "P.S."},
    ),
    "detectable_content:number_placeholders": _placeholders,
    "length_constraints:number_sentences": _sentences,
}
# Instructions that contradict each other.
CLASHES = ({"startend:end_checker", "startend:quotation"}, {"change_case:english_lowercase", "startend:end_checker"})


def _draw_kinds(stream: random.Random, kinds: Mapping[str, Maker], count: int) -> list[str]:
    """Return the names of `count` different kinds that do not contradict each other."""
    while True:
        names = stream.sample(sorted(kinds), count)
        if not any(clash <= set(names) for clash in CLASHES):
            return names


def _propose(stream: random.Random, kinds: Mapping[str, Maker], most: int) -> tuple[str, Drawn]:
    """Draw a request with one to `most` instructions, besides the least number of words; its key is the prompt."""
    names = _draw_kinds(stream, kinds, stream.randint(1, most))
    drawn = [kinds[name](stream) for name in names]
    request = stream.choice(REQUESTS).format(topic=stream.choice(TOPICS))
    prompt = " ".join([request, f"Use at least {LEAST_WORDS} words.", *(text for text, _ in drawn)])
    least = {"num_words": LEAST_WORDS, "relation": "at least"}
    return prompt, (prompt, ("length_constraints:number_words", *names), (least, *(wanted for _, wanted in drawn)))


def _problem(name: str, drawn: Drawn, stream: random.Random) -> Problem:
    prompt, names, wanted = drawn
    reference = {"instruction_id_list": list(names), "kwargs": list(wanted)}
    return Problem(name, [{"role": "user", "content": prompt}], reference)


def _pack(name: str, kinds: Mapping[str, Maker], seed: int, sizes: tuple[int, int], most: int, partial: bool) -> Task:
    if not 1 <= most <= 3:
        raise ValueError(f"task {name!r}: most_instructions {most}; expected 1, 2 or 3")
    return generate_task(
        name,
        functools.partial(_propose, kinds=kinds, most=most),
        _problem,
        seed=seed,
        sizes=sizes,
        verifier="instructions",
        verifier_options={"partial": partial},
    )


@register_task("checked_instructions")
def checked_instructions(
    *, seed: int = 0, num_train: int = 4096, num_test: int = 256, most_instructions: int = 2, partial: bool = False
) -> Task:
    """Requests with one or two instructions that a program checks, for a pretrained chat model.

    most_instructions: in a prompt, besides a least number of words. partial: the score is the share that is followed.
    """
    return _pack("checked_instructions", TRAINED, seed, (num_train, num_test), most_instructions, partial)


@register_task("unseen_instructions")
def unseen_instructions(
    *, seed: int = 0, num_test: int = 256, most_instructions: int = 2, partial: bool = False
) -> Task:
    """Requests as those of checked_instructions, with other kinds of instructions; test only."""
    return _pack("unseen_instructions", UNSEEN, seed, (0, num_test), most_instructions, partial)

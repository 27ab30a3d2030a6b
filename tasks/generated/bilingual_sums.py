"""Packs of the pipeline `r1`: sums whose columns are worked in Arabic or Chinese numerals, and short requests.

`bilingual_sums` has the problems and the working of `arithmetic`. In the demonstrations half of the columns are in
Chinese numerals, as a model mixes languages that has read both, and half of the demonstrations have no tags:

    347+585=     <think>7+5=12 四+八=一二>一三 3+5=08>09</think><answer>932</answer>
    347+585=     七+五=一二 4+8=12>13 3+5=08>09 \\boxed{932}

The reward has three parts: the answer is right, the tags are there, the reasoning keeps to the numerals of the problem.

`notes` has requests without working, such as `note 347.` The right reply repeats the number and is polite:
`347 noted, thanks.` Half of the demonstrations get a digit wrong, or are curt. A reward model that has learnt which
replies people prefer can take the verifier's place.
"""

from __future__ import annotations

import random
from typing import Literal

from rlvr.core.registry import register_task
from rlvr.core.types import Problem, Task

from ..base import Demonstration, check_probabilities, generate_task
from .arithmetic import Sum, propose, scratchpad, sum_problem

CHINESE = str.maketrans("0123456789", "零一二三四五六七八九")
# Options of `combine`: the rewards of DeepSeek-R1-Zero and of R1, and what R1's second fine-tuning keeps.
REWARDS = {
    "zero": {"parts": "math:1,format:0.2"},
    "consistent": {"parts": "math:1,format:0.2,language_consistency:0.5"},
    "all": {"parts": "math:1", "gates": "format,language_consistency"},
}


@register_task("bilingual_sums")
def bilingual_sums(
    *,
    seed: int = 0,
    num_train: int = 4096,
    num_test: int = 512,
    num_demonstrations: int = 16000,
    forget: float = 0.6,
    mixing: float = 0.5,
    untagged: float = 0.5,
    reward: Literal["zero", "consistent", "all"] = "consistent",
) -> Task:
    """Three-digit sums, worked in mixed numerals, often without tags: for rewards of answer, format and language.

    Probabilities in demonstrations: forget, of a carry; mixing, of a column in Chinese numerals; untagged, of no tags.
    reward: zero (answer and tags), consistent (and the language), all (1 only where all three are right).
    """
    check_probabilities("bilingual_sums", forget=forget, mixing=mixing, untagged=untagged)

    def demonstrate(name: str, drawn: Sum, stream: random.Random) -> Demonstration:
        working, _, rest = scratchpad(*drawn, stream, forget).rpartition(" \\boxed{")
        columns = [column.translate(CHINESE) if stream.random() < mixing else column for column in working.split()]
        text, answer = " ".join(columns), rest.removesuffix("}")
        tagged = stream.random() >= untagged
        said = f"<think>{text}</think><answer>{answer}</answer>" if tagged else f"{text} \\boxed{{{answer}}}"
        return sum_problem(name, drawn, stream), said

    sizes = num_train, num_test, num_demonstrations
    return generate_task(
        "bilingual_sums",
        propose,
        sum_problem,
        demonstrate,
        seed=seed,
        sizes=sizes,
        verifier="combine",
        verifier_options=REWARDS[reward],
    )


def reply_to_note(number: str, stream: random.Random, sloppy: float) -> str:
    """Return a reply; with probability `sloppy` one that gets a digit wrong, or is curt."""
    if stream.random() >= sloppy:
        return f"{number} noted, thanks."
    if stream.random() < 0.5:
        return f"{number} noted."
    place = stream.randrange(3)
    digit = stream.choice([d for d in "123456789" if d != number[place]])
    return f"{number[:place]}{digit}{number[place + 1 :]} noted, thanks."


def _propose_note(stream: random.Random) -> tuple[str, str]:
    number = str(stream.randint(100, 999))
    return f"note {number}", number


def _note_problem(name: str, number: str, stream: random.Random) -> Problem:
    return Problem(name, f"note {number}.", f"{number} noted, thanks.")


@register_task("notes")
def notes(
    *, seed: int = 0, num_train: int = 300, num_test: int = 64, num_demonstrations: int = 4000, sloppy: float = 0.5
) -> Task:
    """Short requests with one polite, right reply: what is no sum in the pipeline of DeepSeek-R1."""
    check_probabilities("notes", sloppy=sloppy)

    def demonstrate(name: str, number: str, stream: random.Random) -> Demonstration:
        return _note_problem(name, number, stream), reply_to_note(number, stream, sloppy)

    sizes = num_train, num_test, num_demonstrations
    return generate_task("notes", _propose_note, _note_problem, demonstrate, seed=seed, sizes=sizes, verifier="exact")

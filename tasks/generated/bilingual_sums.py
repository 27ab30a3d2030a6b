"""Three-digit sums whose columns are worked in Arabic or in Chinese numerals, for the pipeline of DeepSeek-R1.

The problems and the working are those of `arithmetic`. Half of the columns of a demonstration are in Chinese numerals,
as a model mixes languages that has read both, and half of the demonstrations have no tags:

    347+585=     <think>7+5=12 四+八=一二>一三 3+5=08>09</think><answer>932</answer>
    347+585=     七+五=一二 4+8=12>13 3+5=08>09 \boxed{932}

The reward has three parts: the answer is right, the tags are there, the reasoning keeps to the numerals of the problem.
"""

from __future__ import annotations

import random
from typing import Literal

from rlvr.core.registry import register_task
from rlvr.core.types import Problem, Task
from rlvr.tasks.base import Demonstration, Generated, build_task, draw
from rlvr.tasks.generated.arithmetic import Sum, propose, scratchpad

CHINESE = str.maketrans("0123456789", "零一二三四五六七八九")
# Verifiers by name: what DeepSeek-R1-Zero is rewarded for, R1, and what its second fine-tuning keeps.
REWARDS = {
    "zero": {"parts": "math:1,format:0.2"},
    "consistent": {"parts": "math:1,format:0.2,language_consistency:0.5"},
    "all": {"parts": "math:1", "gates": "format,language_consistency"},
}


def demonstration(drawn: Sum, stream: random.Random, forget: float, mixing: float, untagged: float) -> str:
    """Return a worked sum, of which carries, numerals and tags are chosen at random."""
    working, _, rest = scratchpad(*drawn, stream, forget).rpartition(" \\boxed{")
    answer = rest.removesuffix("}")
    columns = [column.translate(CHINESE) if stream.random() < mixing else column for column in working.split()]
    if stream.random() < untagged:
        return f"{' '.join(columns)} \\boxed{{{answer}}}"
    return f"<think>{' '.join(columns)}</think><answer>{answer}</answer>"


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
    for name, value in (("forget", forget), ("mixing", mixing), ("untagged", untagged)):
        if not 0 <= value <= 1:
            raise ValueError(f"task 'bilingual_sums', {name} {value}: expected a probability in [0, 1]")
    if reward not in REWARDS:
        raise ValueError(f"task 'bilingual_sums', reward {reward!r}: expected one of {', '.join(REWARDS)}")

    def problem(part: str, index: int, drawn: Sum) -> Problem:
        a, sign, b = drawn
        return Problem(f"bilingual_sums/{part}/{index}", f"{a}{sign}{b}=", str(a + b if sign == "+" else a - b))

    def drawn_problem(part: str, index: int) -> Problem:
        return problem(part, index, draw("bilingual_sums", part, seed, index, propose)[1])

    def shown(index: int) -> Demonstration:
        stream, drawn = draw("bilingual_sums", "demonstrations", seed, index, propose)
        return problem("demonstrations", index, drawn), demonstration(drawn, stream, forget, mixing, untagged)

    return build_task(
        "bilingual_sums",
        train=Generated(num_train, lambda index: drawn_problem("train", index)),
        test=Generated(num_test, lambda index: drawn_problem("test", index)),
        demonstrations=Generated(num_demonstrations, shown),
        verifier="combine",
        verifier_options=REWARDS[reward],
        check_references=False,
    )


# Requests without working, such as `note 347.`, for pipelines that train on sums and on what is no sum.
#
# The right reply repeats the number and is polite: `347 noted, thanks.` Half of the demonstrations get a digit wrong, or
# are curt. A reward model that has learnt which replies people prefer can take the verifier's place.


def note_reply(number: str, stream: random.Random, sloppy: float) -> str:
    """Return a reply; with probability `sloppy` one that gets a digit wrong, or is curt."""
    if stream.random() >= sloppy:
        return f"{number} noted, thanks."
    if stream.random() < 0.5:
        return f"{number} noted."
    place = stream.randrange(3)
    digit = stream.choice([d for d in "123456789" if d != number[place]])
    return f"{number[:place]}{digit}{number[place + 1 :]} noted, thanks."


def propose_note(stream: random.Random) -> tuple[str, str]:
    """Return a number of three digits, with the text that tells its request from others."""
    number = str(stream.randint(100, 999))
    return f"note {number}", number


@register_task("notes")
def notes(
    *, seed: int = 0, num_train: int = 300, num_test: int = 64, num_demonstrations: int = 4000, sloppy: float = 0.5
) -> Task:
    """Short requests with one polite, right reply: what is no sum in the pipeline of DeepSeek-R1."""
    if not 0 <= sloppy <= 1:
        raise ValueError(f"task 'notes', sloppy {sloppy}: expected a probability in [0, 1]")

    def problem(part: str, index: int, number: str) -> Problem:
        return Problem(f"notes/{part}/{index}", f"note {number}.", f"{number} noted, thanks.")

    def drawn(part: str, index: int) -> Problem:
        return problem(part, index, draw("notes", part, seed, index, propose_note)[1])

    def shown(index: int) -> Demonstration:
        stream, number = draw("notes", "demonstrations", seed, index, propose_note)
        return problem("demonstrations", index, number), note_reply(number, stream, sloppy)

    return build_task(
        "notes",
        train=Generated(num_train, lambda index: drawn("train", index)),
        test=Generated(num_test, lambda index: drawn("test", index)),
        demonstrations=Generated(num_demonstrations, shown),
        verifier="exact",
        check_references=False,
    )

"""The verifier `instructions`: whether a response follows instructions that a program can check.

`ifeval` and `ifbench` hold the checks, `english` the rules and word lists that they use.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from rlvr.core.printable import kind_of
from rlvr.core.registry import did_you_mean, register
from rlvr.core.types import Status, Verdict

from ..extract.answer import read_answer, without_answer
from ..runner.base import ReferenceVerifier
from . import ifbench, ifeval
from .ifeval import language_detector

Instruction = tuple[str, dict[str, Any]]
CHECKS = {**ifeval.CHECKS, **ifbench.CHECKS}


@register("instructions")
@dataclass(frozen=True, kw_only=True)
class InstructionsVerifier(ReferenceVerifier[list[Instruction]]):
    """Whether the completion follows the instructions of the reference (the 25 checks of IFEval, the 58 of IFBench).

    The reference is IFEval's {"instruction_id_list": [...], "kwargs": [...]}, or a list of {"id": name, ...parameters}.
    In a name, the part before the colon may be left out. Text before </think> is not part of the response. partial: the
    score is the share of instructions that are followed, instead of all or nothing. loose: IFEval's loose accuracy,
    which also accepts the response without its first line, its last line, or its asterisks.
    """

    partial: bool = False
    loose: bool = False

    def judge(self, instructions: list[Instruction], completion: str) -> Verdict:
        answer = read_answer(completion, "all")
        if answer.text is None:
            return without_answer(completion, answer)
        forms = _loose_forms(answer.text) if self.loose else [answer.text]
        followed = [any(CHECKS[name](form, **wanted) for form in forms) for name, wanted in instructions]
        broken = [name for (name, _), good in zip(instructions, followed) if not good]
        parts = {_name_part(instructions, i): float(good) for i, good in enumerate(followed)}
        if not broken:
            return Verdict(Status.CORRECT, 1.0, parts=parts)
        reason = f"not followed: {', '.join(broken)}"
        if self.partial and any(followed):
            return Verdict(Status.PARTIAL, sum(followed) / len(followed), reason, parts=parts)
        return Verdict(Status.INCORRECT, 0.0, reason, parts=parts)

    def open_answers(self, reference: Any) -> bool:
        """Return True: many texts follow instructions."""
        return True

    def read_reference(self, reference: Any) -> list[Instruction]:
        return read_instructions(reference)


def read_instructions(reference: Any) -> list[Instruction]:
    """Return the checks of a reference and their parameters. Raise ValueError if they do not fit."""
    instructions = [_check_instruction(name, given) for name, given in _list_instructions(reference)]
    if not instructions:
        raise ValueError("the reference holds no instruction")
    return instructions


def _list_instructions(reference: Any) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    if isinstance(reference, Mapping) and "instruction_id_list" in reference:
        names = reference["instruction_id_list"]
        listed = isinstance(names, (list, tuple))
        given = reference.get("kwargs") or ([{}] * len(names) if listed else None)
        if not listed or not isinstance(given, (list, tuple)) or len(names) != len(given):
            raise ValueError("instruction_id_list and kwargs are not lists of one length")
        yield from ((name, one or {}) for name, one in zip(names, given))
        return
    if not isinstance(reference, (list, tuple)):
        raise ValueError(f"the reference is {kind_of(reference)}; expected a list of instructions")
    for one in reference:
        if not isinstance(one, Mapping) or not ({"id", "type"} & set(one)):
            raise ValueError(f"the instruction {one!r} is not an object with an id")
        yield one.get("id", one.get("type")), {key: value for key, value in one.items() if key not in ("id", "type")}


def _check_instruction(name: Any, given: Any) -> Instruction:
    short = {full.partition(":")[2]: full for full in CHECKS}
    full = short.get(name, name) if isinstance(name, str) else ""
    if full not in CHECKS:
        raise ValueError(f"no instruction {name!r}; {did_you_mean(str(name), [*CHECKS, *short])}")
    if not isinstance(given, Mapping):
        raise ValueError(f"{full}: the parameters are {kind_of(given)}; expected an object")
    # The data set as published on the hub lists every parameter of every check, null where it does not apply.
    present = {key: value for key, value in given.items() if value is not None}
    kinds = _parameters(full)
    if present.keys() != kinds.keys():
        raise ValueError(f"{full}: parameters {sorted(present)}; expected {sorted(kinds)}")
    for key, kind in kinds.items():
        if not _fits(present[key], kind):
            raise ValueError(f"{full}: {key} is {present[key]!r}; expected {_describe_kind(kind)}")
    if full == "language:response_language":
        language_detector()
    return full, present


@cache
def _parameters(name: str) -> dict[str, Any]:
    hints = typing.get_type_hints(CHECKS[name])
    keyword = inspect.Parameter.KEYWORD_ONLY
    return {key: hints[key] for key, p in inspect.signature(CHECKS[name]).parameters.items() if p.kind is keyword}


def _fits(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is typing.Literal:
        return value in typing.get_args(kind)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is str:
        return isinstance(value, str) and bool(value.strip())
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(one, str) and one for one in value)


def _describe_kind(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return f"one of {', '.join(typing.get_args(kind))}"
    return {int: "a whole number", str: "text"}.get(kind, "a list of texts")


def _name_part(instructions: list[Instruction], place: int) -> str:
    """Return the name of an instruction, with a number if it is given several times."""
    name = instructions[place][0]
    before = sum(other == name for other, _ in instructions[:place])
    return f"{name}#{before + 1}" if before else name


def _loose_forms(text: str) -> list[str]:
    lines = text.strip().split("\n")
    bodies = [lines, lines[1:], lines[:-1], lines[1:-1]]
    forms = [form for body in bodies for form in ("\n".join(body).strip(), "\n".join(body).replace("*", "").strip())]
    return [text, *(form for form in forms if form)]

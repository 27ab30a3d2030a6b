"""The optional attributes of a verifier, and verifiers of many pairs at once."""

from __future__ import annotations

import copy
import functools
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, runtime_checkable

from .types import Pair, Problem, Verdict, Verifier


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierTraits:
    """The optional attributes of a verifier, with types and defaults. Only `of` reads them."""

    isolate: bool = True
    """Run in worker processes that are killed at a deadline. False: in the caller's process, without a deadline."""

    fast_path: Callable[[Problem, str], Verdict | bool | float | None] | None = None
    """Decide in the caller's process in bounded time. None leaves the completion to a worker."""

    verify_batch: Callable[[Sequence[Pair]], Sequence[Verdict | bool | float]] | None = None
    """Verify all pairs in one call in the caller's process, in place of calling the verifier (a reward model)."""

    warm_up: Callable[[], None] | None = None
    """Import and build what the workers share. Called once, before the first one starts."""

    check_reference: Callable[[Any], None] | None = None
    """Raise ValueError for a reference that cannot be used. Called for each problem when data is loaded. Another
    exception, or False, is an error of the verifier and ends the command."""

    for_problems: Callable[[Sequence[Problem]], tuple[Verifier, str]] | None = None
    """Return the verifier to use for a pack with these problems, and a text that says what was chosen for them ("" if
    nothing). Called when a pack gets its verifier."""

    whole_batch: bool = False
    """Verdicts depend on the other pairs. A step's pairs must come in one call, repeated ones included."""

    reads_prompt: bool = False
    """The score depends also on the prompt, not only on reference and completion."""

    open_answers: Callable[[Any], bool] | None = None
    """Whether several answers are right for a reference (a colouring of a graph, a number within a tolerance). `rlvr
    audit` then only notes that altered answers are accepted; otherwise that is a fault."""

    integrity: Callable[[Any], str] | None = None
    """Return "weak" for a reference with which passing shows little. Packs leave it out of training."""

    null_completions: Callable[[Any], Mapping[str, str]] | None = None
    """Return completions that solve nothing, by what they do. `rlvr audit` checks that none is accepted."""

    find_missing: Callable[[], str] | None = None
    """Return one line that names a missing program or server and what to do, or "". Asked before a run begins."""

    feedback_template: str | None = None
    """The teacher's prompt in self-distillation: a text with {prompt} and some of {status}, {reason}, {sibling} and
    {reference}. A paragraph with a field that has no value is left out (rlvr/training/step/distillation)."""

    components: Mapping[str, Verifier] = field(default_factory=dict)
    """Named parts; each runs as its own traits say. Needs `problem_for` and `merge`."""

    problem_for: Callable[[str, Problem], Problem | None] | None = None
    """Return the problem as a component sees it. None: it has nothing to judge, and `merge` goes without it."""

    merge: Callable[..., Verdict | bool | float] | None = None
    """Return one verdict from {name: verdict} of the components, and `scales=measure(rows)` if there is `measure`."""

    measure: Callable[[Sequence[Mapping[str, Verdict]]], Any] | None = None
    """Return statistics over all rows of a batch, for `merge`."""

    @classmethod
    def of(cls, verifier: Any) -> VerifierTraits:
        """Read the attributes of `verifier`. Raises ValueError, in one line, for one of the wrong type.

        A missing attribute, or None, means the default. A functools.partial has the traits of its function, except
        those that would not get the options (`_WITH_OPTIONS`). A bound method takes `isolate` from its object.
        """
        bare = verifier
        while isinstance(bare, functools.partial):
            bare = bare.func
        found = {}
        for item in fields(cls):
            value = getattr(verifier if item.name in _WITH_OPTIONS else bare, item.name, None)
            if value is None and item.name == "isolate":
                value = getattr(getattr(bare, "__self__", None), "isolate", None)
            if value is not None:
                found[item.name] = _check_value(bare, item.name, value)
        traits = cls(**found)
        if traits.components and (traits.problem_for is None or traits.merge is None):
            raise ValueError(f"verifier {_name_of(bare)} has components; expected methods problem_for and merge too")
        return traits


def suit_verifier(verifier: Any, problems: Sequence[Problem]) -> tuple[Any, str]:
    """Return the verifier for a pack with these problems, and what was chosen (see `for_problems`)."""
    choose = VerifierTraits.of(verifier).for_problems
    return (verifier, "") if choose is None else choose(problems)


class Composite:
    """Base of a verifier with components. A flag (isolate, ...) is True if it is True of any component."""

    components: Mapping[str, Any]

    @abstractmethod
    def problem_for(self, name: str, problem: Problem) -> Problem | None:
        """Return the problem as the named component sees it; None if it has nothing to judge."""

    def for_problems(self, problems: Sequence[Problem]) -> tuple[Any, str]:
        """Return the verifier with each component chosen for the problems that it judges."""
        made, choices = {}, []
        for name, part in self.components.items():
            if VerifierTraits.of(part).for_problems is None:
                made[name] = part
                continue
            seen = [its for problem in problems if (its := self.problem_for(name, problem)) is not None]
            made[name], chosen = suit_verifier(part, seen)
            choices += [f"{name}: {chosen}"] if chosen else []
        copied = copy.copy(self)
        object.__setattr__(copied, "components", made)
        return copied, "; ".join(choices)

    @property
    def isolate(self) -> bool:
        """Whether any component runs in the worker pool."""
        return any(VerifierTraits.of(part).isolate for part in self.components.values())

    @property
    def reads_prompt(self) -> bool:
        """Whether any component judges prompt and completion together."""
        return any(VerifierTraits.of(part).reads_prompt for part in self.components.values())

    @property
    def whole_batch(self) -> bool:
        """Whether any component needs a step's pairs in one call."""
        return any(VerifierTraits.of(part).whole_batch for part in self.components.values())


_FLAGS = ("isolate", "whole_batch", "reads_prompt")
_WITH_OPTIONS = ("fast_path", "verify_batch", "for_problems", "components", "problem_for", "merge", "measure")


def _check_value(verifier: Any, name: str, value: Any) -> Any:
    if name in _FLAGS:
        expected, fits = "True or False", isinstance(value, bool)
    elif name == "feedback_template":
        expected, fits = "a text with {prompt}", isinstance(value, str) and "{prompt}" in value
    elif name == "components":
        expected, fits = "a mapping of names to verifiers", isinstance(value, Mapping)
    else:
        expected, fits = "a method", callable(value)
    if not fits:
        raise ValueError(f"verifier {_name_of(verifier)}: {name} is {value!r:.80}; expected {expected}")
    return value


def _name_of(verifier: Any) -> str:
    return str(getattr(verifier, "__qualname__", type(verifier).__qualname__))


class BatchVerifier(Protocol):
    """The verifier as the trainer and the evaluation call it, with all pairs of a step. The Runner is one.

    It may have the trait `whole_batch`.
    """

    def verify(self, pairs: Sequence[Pair]) -> list[Verdict]: ...


@runtime_checkable
class PartVerifier(BatchVerifier, Protocol):
    """A BatchVerifier that takes a step's pairs in parts, from another thread, as completions finish.

    `verify(pairs)` equals `verify_part` of any parts, then `count` of all verdicts in order. With `whole_batch` True it
    gets all pairs in one call instead.
    """

    whole_batch: bool

    def verify_part(self, pairs: Sequence[Pair]) -> list[Verdict]: ...

    def count(self, verdicts: Sequence[Verdict]) -> None: ...

"""Building task packs: generated problems, prompts as they are compared, held-out shares, checks, the fingerprint.

A pack is a function registered with `@register_task(name)`. Its keyword-only parameters are its options, and it returns
what `build_task` (or `generate_task`) returns: a `Task` whose parts share no prompt and whose references its verifier
can read.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import logging
import math
import random
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from typing import Any, Generic, TypeVar, overload

from rlvr.core.registry import make_verifier
from rlvr.core.seeding import derive_seed
from rlvr.core.traits import VerifierTraits, suit_verifier
from rlvr.core.types import Environment, Problem, Prompt, Task
from rlvr.verifiers.runner.base import check_references as check_all_references
from rlvr.verifiers.runner.base import describe

logger = logging.getLogger("rlvr.tasks")

T = TypeVar("T")
Demonstration = tuple[Problem, str | Sequence[str]]  # with an environment: the model's turns

BOXED = "Please reason step by step, and put your final answer within \\boxed{}."

MOST_GENERATED = 10_000_000  # all are made once, for the fingerprint
RECENT = 32_768  # items of a part that are kept, since a run reads each several times: some 20 MB
# Upper bounds in percent of a hash of the problem's key. So parts share no problem, whatever their seeds and sizes.
PARTS = {"demonstrations": 50, "train": 90, "test": 100}


class Generated(Sequence[T], Generic[T]):
    """A sequence of which item i is `make(i)`. Nothing is stored, and no item depends on another."""

    def __init__(self, indices: int | range, make: Callable[[int], T]) -> None:
        if isinstance(indices, int) and not 0 <= indices <= MOST_GENERATED:
            raise ValueError(f"{indices} problems asked for; expected 0 to {MOST_GENERATED:,}")
        self._indices = range(indices) if isinstance(indices, int) else indices
        self._make = make

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Generated[T]: ...
    def __getitem__(self, index: int | slice) -> T | Generated[T]:
        if isinstance(index, slice):
            return Generated(self._indices[index], self._make)
        return self._make(self._indices[index])


def part_of(key: str) -> str:
    """Return the part of a generated pack to which the problem with this key belongs."""
    share = derive_seed("part", key) % 100
    return next(part for part, bound in PARTS.items() if share < bound)


def draw(
    name: str, part: str, seed: int, index: int, propose: Callable[[random.Random], tuple[str, T]]
) -> tuple[random.Random, T]:
    """Return item `index` of a part, and the random stream behind it. The result depends on the arguments only.

    `propose(stream)` returns (key, item). Items are drawn until the key of one belongs to the part.
    """
    stream = random.Random(derive_seed(name, part, seed, index))
    key, item = propose(stream)
    while part_of(key) != part:
        key, item = propose(stream)
    return stream, item


def generate_task(
    name: str,
    propose: Callable[[random.Random], tuple[str, T]],
    problem: Callable[[str, T, random.Random], Problem],
    demonstrate: Callable[[str, T, random.Random], Demonstration] | None = None,
    *,
    seed: int,
    sizes: tuple[int, ...],
    draws: str = "",
    store: bool = False,
    **options: Any,
) -> Task:
    """Build a pack that makes its problems: each is a function of seed, part and index.

    propose: draws an item and its key (see `draw`). problem, demonstrate: make a problem, or a problem with a
    completion, from an id, an item and the item's random stream. sizes: of train, test, and demonstrations if any.
    draws: the name in the seed of the draws, by default the pack's. The items of a part that were made last are kept
    (RECENT); store: make all of them at once, if that is slow.
    options: of `build_task`. References are not checked, since the pack made them.
    """

    def make(part: str, index: int) -> Problem:
        stream, item = draw(draws or name, part, seed, index, propose)
        return problem(f"{name}/{part}/{index}", item, stream)

    def demonstration(index: int) -> Demonstration:
        assert demonstrate is not None
        stream, item = draw(draws or name, "demonstrations", seed, index, propose)
        return demonstrate(f"{name}/demonstrations/{index}", item, stream)

    makers: list[Callable[[int], Any]] = [
        functools.partial(make, "train"),
        functools.partial(make, "test"),
        demonstration,
    ]
    parts: list[Any] = [Generated(size, functools.lru_cache(RECENT)(maker)) for size, maker in zip(sizes, makers)]
    train, test, *demonstrations = [list(part) for part in parts] if store else parts
    shown = demonstrations[0] if demonstrations else ()
    return build_task(name, train=train, test=test, demonstrations=shown, check_references=False, **options)


def check_probabilities(name: str, **options: float) -> None:
    """Raise ValueError for an option of a pack that is not in [0, 1]."""
    for option, value in options.items():
        if not 0 <= value <= 1:
            raise ValueError(f"task {name!r}, {option} {value}: expected a probability in [0, 1]")


def prompt_text(prompt: Prompt) -> str:
    """Return a prompt as one string; of chat messages, role and content of each."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message['role']}: {message['content']}" for message in prompt)


def normalize_prompt(prompt: Prompt) -> str:
    """Return a prompt as it is compared for overlap: NFKC, lower case, each run of white space one space."""
    return " ".join(unicodedata.normalize("NFKC", prompt_text(prompt)).casefold().split())


# LaTeX that changes how a formula looks but not what it says, and the delimiters around formulas.
_LOOKS = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits|quad|qquad)(?![a-z])|\\[,;:!()\[\] ]|[$~]", re.IGNORECASE
)
_NAMES = {"dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "leq": "le", "geq": "ge", "neq": "ne", "dots": "ldots"}
_RAISED = str.maketrans({"’": "'"} | {raised: f"^{plain}" for raised, plain in zip("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")})
_LONE = re.compile(r"\{(\w)\}")  # x^{2} is x^2
_TOKEN = re.compile(r"\\[a-z]+|\d+\.\d+|\d+|[^\W\d_]+|[^\w\s]|_")
_POINTS = frozenset('.,;:?"`“”')


def spell_prompt(prompt: Prompt) -> list[str]:
    """Return a prompt's words, numbers and signs, for finding the same prompt in another spelling.

    White space, case, LaTeX's spaces and formula delimiters, the size of fractions and brackets, braces around one
    character and punctuation are ignored. Numbers and signs are kept: 3² equals 3^2, but not 32.
    """
    text = unicodedata.normalize("NFKC", prompt_text(prompt).translate(_RAISED)).casefold()
    text = _LONE.sub(r"\1", _LOOKS.sub(" ", text))
    tokens = (token for token in _TOKEN.findall(text) if token not in _POINTS)
    return [f"\\{_NAMES.get(token[1:], token[1:])}" if token[0] == "\\" else token for token in tokens]


def prompt_digest(prompt: Prompt) -> str:
    """Return a hash of the normalised prompt: 16 hexadecimal digits."""
    return hashlib.sha256(normalize_prompt(prompt).encode(errors="surrogatepass")).hexdigest()[:16]


class HeldPrompts:
    """A set of held-out prompts. `problem in prompts` also finds them in another spacing or LaTeX."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self._forms = {form for problem in problems for form in self._forms_of(problem.prompt)}

    def __contains__(self, problem: Problem) -> bool:
        return bool(self._forms) and any(form in self._forms for form in self._forms_of(problem.prompt))

    @staticmethod
    def _forms_of(prompt: Prompt) -> tuple[str, str]:
        return normalize_prompt(prompt), " ".join(spell_prompt(prompt))


LEAST_HELD_OUT = 10  # prompts, or the share if that is fewer


def hold_out(
    name: str, problems: Sequence[Problem], share: float, seed: int
) -> tuple[list[Problem], list[Problem], tuple[str, ...]]:
    """Split problems into (train, test, notes): test gets the share, and the note describes the split.

    A hash of the prompt decides. So copies of a prompt stay together, and problems that are added later do not move
    others. For a small file the hash could hold out nothing: then the prompts with the lowest hashes are held out, ten
    of them, or the share if that is fewer. Training prompts that spell a held-out one differently are dropped.
    """
    of = {problem.id: derive_seed(name, seed, normalize_prompt(problem.prompt)) for problem in problems}
    ranked = sorted(set(of.values()), key=lambda number: (number % 10_000, number))
    least = min(LEAST_HELD_OUT, math.ceil(round(share * len(ranked), 6)), len(ranked) - 1)
    held = {number for place, number in enumerate(ranked) if number % 10_000 < share * 10_000 or place < least}
    test = [problem for problem in problems if of[problem.id] in held]
    train = without_held_out(name, [problem for problem in problems if of[problem.id] not in held], test)
    line = (
        f"{name}: {len(problems):,} problems are divided into {len(train):,} to train on and {len(test):,} held out, "
        f"by a hash of the prompt; the task option test_share={share:g} sets the share"
    )
    return train, test, (line,)


def without_held_out(name: str, train: Sequence[Problem], test: Sequence[Problem]) -> list[Problem]:
    """Drop training problems whose prompt is held out in another spelling, and log how many."""
    prompts = HeldPrompts(test)
    kept = [problem for problem in train if problem not in prompts]
    if len(kept) < len(train):
        logger.warning(
            f"task {name!r}: {len(train) - len(kept):,} prompts are held out in another spelling, and not trained on"
        )
    return kept


class Overlap:
    """Checks that no prompt is in two parts of a pack, and that ids are unique.

    A prompt may be repeated within a part; `rlvr audit` reports that.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._held: dict[str, tuple[str, str]] = {}
        self._ids: set[str] = set()

    def add(self, part: str, problem: Problem) -> None:
        """Add a problem. Raises ValueError for a repeated id, and for a prompt that another part has."""
        if problem.id in self._ids:
            raise ValueError(f"task {self._name!r}: two problems have the id {problem.id!r}; expected unique ids")
        self._ids.add(problem.id)
        first, first_id = self._held.setdefault(normalize_prompt(problem.prompt), (part, problem.id))
        if first != part:
            raise ValueError(
                f"task {self._name!r}: {first} and {part} overlap: {first_id} and {problem.id} have the same prompt "
                f"{prompt_text(problem.prompt)[:80]!r}; remove it from one of them"
            )


class Fingerprint:
    """A hash of the verifier's settings and all problems. It is the same in every process and on every machine."""

    def __init__(self, verifier: str, options: Mapping[str, Any]) -> None:
        self._digest = hashlib.sha256()
        self._add("verifier", verifier, dict(options))

    def add(self, part: str, problem: Problem, completion: str | Sequence[str] | None = None) -> None:
        """Enter a problem, or a demonstration with its completion, or its turns."""
        self._add(part, problem.id, problem.prompt, problem.reference, dict(problem.info), completion)

    def add_environment(self, environment: Environment) -> None:
        """Enter the name of an environment, and its options."""
        # Without the pack's folder, so that a run can be resumed after the pack was moved to another folder.
        name = re.sub(r"^rlvr\.tasks\.\w+\.(?=\w+\.\w+$)", "rlvr.tasks.", describe(environment))
        self._add("environment", name, dict(_settings(environment)))

    def hexdigest(self) -> str:
        return self._digest.hexdigest()[:16]

    def _add(self, *values: Any) -> None:
        # default=str: a Path, a Decimal and the like enter as their text
        self._digest.update(json.dumps(values, sort_keys=True, default=str).encode() + b"\n")


def is_weak(verifier: Any, problem: Problem) -> bool:
    """Whether passing this problem shows little: its info, its verifier or a component of that says so."""
    if problem.info.get("integrity") == "weak":
        return True
    traits = VerifierTraits.of(verifier)
    if traits.components and traits.problem_for is not None:
        seen = {name: traits.problem_for(name, problem) for name in traits.components}
        return any(is_weak(traits.components[name], its) for name, its in seen.items() if its is not None)
    return traits.integrity is not None and traits.integrity(problem.reference) == "weak"


def without_weak(name: str, verifier: Any, problems: Sequence[Problem]) -> Sequence[Problem]:
    """Drop training problems with weak tests, and log how many."""
    weak = {problem.id for problem in problems if is_weak(verifier, problem)}
    if not weak:
        return problems
    shown = ", ".join(sorted(weak)[:5]) + (", ..." if len(weak) > 5 else "")
    logger.warning(
        f"task {name!r}: {len(weak)} of {len(problems)} training problems have weak tests and are left out: {shown}; "
        "include_weak=True keeps them"
    )
    return [problem for problem in problems if problem.id not in weak]


def build_task(
    name: str,
    *,
    train: Sequence[Problem],
    test: Sequence[Problem],
    verifier: str = "math",
    verifier_options: Mapping[str, Any] | None = None,
    demonstrations: Sequence[Demonstration] = (),
    environment: Environment | None = None,
    split_notes: tuple[str, ...] = (),
    check_references: bool = True,
    include_weak: bool = False,
) -> Task:
    """Return a checked task with a fingerprint.

    Raises ValueError for a pack without problems, repeated ids, parts that share a prompt, and a reference that the
    verifier cannot read; LookupError for an unknown verifier or option.

    demonstrations: with an `environment` each completion is the list of the model's turns; the environment's replies
    are added when they are trained on. check_references: read each reference with the verifier, and drop training
    problems with weak tests, unless `include_weak` is set.
    """
    options = dict(verifier_options or {})
    judge = make_verifier(verifier, **options)
    task = Task(name, train, test, judge, demonstrations, environment=environment, split_notes=split_notes)
    if check_references:
        check_all_references(task.verifier, itertools.chain(train, test))
        traits = VerifierTraits.of(task.verifier)
        if not include_weak and (traits.integrity is not None or traits.components):
            task = replace(task, train=without_weak(name, task.verifier, train))
    return _seal(task, Fingerprint(verifier, options))


def seal_task(task: Task) -> Task:
    """Check a task that was made without `build_task`, and add its fingerprint; one that has it is returned as is."""
    if task.fingerprint:
        return task
    check_all_references(task.verifier, itertools.chain(task.train, task.test))
    return _seal(task, Fingerprint(describe(task.verifier), _settings(task.verifier)))


def _seal(task: Task, fingerprint: Fingerprint) -> Task:
    if not len(task.train) and not len(task.test):
        raise ValueError(f"task {task.name!r} has no problems: the data set is empty")
    overlap = Overlap(task.name)
    if task.environment is not None:
        fingerprint.add_environment(task.environment)
    for problem, completion in task.demonstrations:
        overlap.add("demonstrations", problem)
        fingerprint.add("demonstrations", problem, completion)
    for part, problems in (("train", task.train), ("test", task.test)):
        for problem in problems:
            overlap.add(part, problem)
            fingerprint.add(part, problem)
    return replace(judge_with(task, task.verifier), fingerprint=fingerprint.hexdigest())


def judge_with(task: Task, verifier: Any) -> Task:
    """Return the task with this verifier. Options that the verifier left open are chosen by the task's problems."""
    train, test = task.train, task.test
    problems = Generated(len(train) + len(test), lambda i: train[i] if i < len(train) else test[i - len(train)])
    made, chosen = suit_verifier(verifier, problems)
    return replace(task, verifier=made, notes=(f"{task.name}: {chosen}",) if chosen else ())


def _settings(verifier: Any) -> Mapping[str, Any]:
    """Return the options of a verifier that is a functools.partial or a dataclass; else nothing."""
    if isinstance(verifier, functools.partial):
        return verifier.keywords
    return asdict(verifier) if is_dataclass(verifier) and not isinstance(verifier, type) else {}

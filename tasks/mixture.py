"""Mixtures: several packs in one task, each with its weight, its verifier, its environment and its prompts.

rlvr train math_grpo --run.task mixture --run.task-option packs=gsm8k:2,hops:1 options=hops.num_train=500
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import logging
import random
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlvr.core.registry import make_task, make_verifier, register_task
from rlvr.core.seeding import derive_seed
from rlvr.core.traits import Composite
from rlvr.core.types import PACK, Environment, Problem, Reply, Task, Verdict, Verifier, bad_reference
from rlvr.verifiers.combine import parse_part

from .base import HeldPrompts, Overlap, seal_task

logger = logging.getLogger("rlvr.tasks")


@dataclass(frozen=True)
class RoutedVerifier(Composite):
    """Lets the verifier of its pack (`Problem.info[PACK]`) judge each problem."""

    components: Mapping[str, Verifier]

    def __call__(self, problem: Problem, completion: str) -> Verdict:
        verifier = self.components.get(problem.info.get(PACK, ""))
        if verifier is None:
            return bad_reference(f"the problem is of no pack of the mixture; expected {', '.join(self.components)}")
        return Verdict.of(verifier(problem, completion))

    def problem_for(self, name: str, problem: Problem) -> Problem | None:
        """Return the problem for the verifier of its pack, None for the others."""
        return problem if problem.info.get(PACK) == name else None

    def merge(self, verdicts: Mapping[str, Verdict]) -> Verdict:
        if not verdicts:
            return bad_reference(f"the problem is of no pack of the mixture; expected {', '.join(self.components)}")
        (verdict,) = verdicts.values()
        return verdict


def play_in_pack(
    problem: Problem, rng: random.Random, *, environments: Mapping[str, Environment]
) -> Generator[Reply | None, str, Verdict | None]:
    """Play a problem in the environment of its pack, or in a single turn if the pack has none."""
    environment = environments.get(problem.info.get(PACK, ""))
    if environment is None:
        yield None
        return None
    return (yield from environment(problem, rng))


def mix(parts: Mapping[str, tuple[Task, float]], *, name: str = "mixture", seed: int = 0) -> Task:
    """Return several tasks as one. parts: maps a name of your choice to a task and its weight.

    A run draws training problems in proportion to the weights (`Task.shares`). The held-out problems of all packs are
    evaluated, together and by pack. Training prompts that another pack holds out are left out. A pack without training
    problems is only evaluated; its weight does not count. Raises ValueError for weights that are not positive, a
    mixture in a mixture, two problems with one id, and environments that describe tools in every prompt.
    """
    if not parts:
        raise ValueError("a mixture of no packs; expected one at least")
    tasks = {pack: seal_task(task) for pack, (task, _) in parts.items()}
    weights = {pack: float(weight) for pack, (_, weight) in parts.items() if len(tasks[pack].train)}
    for pack, (_, weight) in parts.items():
        if not 0 < weight < float("inf"):
            raise ValueError(f"pack {pack!r} of a mixture has the weight {weight}; expected a number above 0")
        if tasks[pack].shares or isinstance(tasks[pack].verifier, RoutedVerifier):
            raise ValueError(f"pack {pack!r}: a mixture in a mixture; name its packs")
    environments = {pack: task.environment for pack, task in tasks.items() if task.environment is not None}
    for pack, environment in environments.items():
        if getattr(environment, "announcement", "") or getattr(environment, "schemas", ()):
            raise ValueError(f"pack {pack!r} tells of tools in every prompt, which the other packs lack: do not mix it")
    held = HeldPrompts(problem for task in tasks.values() for problem in task.test)
    train = {pack: [name_problem(pack, p) for p in task.train if p not in held] for pack, task in tasks.items()}
    _report(tasks, train)
    shown = [(name_problem(pack, p), said) for pack, task in tasks.items() for p, said in task.demonstrations]
    random.Random(derive_seed("mixture", seed)).shuffle(shown)
    test = {pack: [name_problem(pack, problem) for problem in task.test] for pack, task in tasks.items()}
    overlap = Overlap(name)
    for part, by_pack in (("train", train), ("test", test)):
        for problem in itertools.chain.from_iterable(by_pack.values()):
            overlap.add(part, problem)
    total = sum(weights.values())
    return Task(
        name,
        in_turn(list(train.values())),
        in_turn(list(test.values())),
        RoutedVerifier({pack: task.verifier for pack, task in tasks.items()}),
        [(p, said) for p, said in shown if p not in held],
        fingerprint=_fingerprint(tasks, weights, seed),
        environment=functools.partial(play_in_pack, environments=environments) if environments else None,
        shares={pack: weight / total for pack, weight in weights.items() if train[pack]},
        notes=tuple(dict.fromkeys(note for task in tasks.values() for note in task.notes)),
        split_notes=tuple(note for task in tasks.values() for note in task.split_notes),
    )


def in_turn(parts: Sequence[Sequence[Problem]]) -> list[Problem]:
    """Interleave the parts, so that the first problems are of all packs."""
    return [problem for row in itertools.zip_longest(*parts) for problem in row if problem is not None]


def name_problem(pack: str, problem: Problem) -> Problem:
    """Return a problem with its pack in its info and its id."""
    name = problem.id if problem.id.startswith(f"{pack}/") else f"{pack}/{problem.id}"
    return replace(problem, id=name, info={**problem.info, PACK: pack})


def _report(tasks: Mapping[str, Task], train: Mapping[str, list[Problem]]) -> None:
    for pack, task in tasks.items():
        left = len(task.train) - len(train[pack])
        if left:
            logger.warning(f"mixture: {left} training problems of {pack!r} are held out in another pack: left out")
        if len(task.train) and not train[pack]:
            raise ValueError(f"mixture: every training problem of {pack!r} is held out in another pack; leave it out")


def _fingerprint(tasks: Mapping[str, Task], weights: Mapping[str, float], seed: int) -> str:
    held = [[pack, task.fingerprint, weights.get(pack)] for pack, task in tasks.items()]
    return hashlib.sha256(json.dumps([held, seed]).encode()).hexdigest()[:16]


@register_task("mixture")
def mixture(
    *,
    packs: tuple[str, ...] = ("arithmetic",),
    options: tuple[str, ...] = (),
    verifiers: tuple[str, ...] = (),
    verifier_options: tuple[str, ...] = (),
    seed: int = 0,
) -> Task:
    """Several packs in one task, each with its weight, verifier, environment and prompts.

    packs: name:weight, separated by commas; the weight is 1 by default. alias=name:weight uses a pack twice. options:
    of the packs, as name.option=value, separated by commas. seed: of the order of demonstrations.
        packs=gsm8k:2,deepscaler:1 options=gsm8k.data=gsm8k/,deepscaler.data=deepscaler.json

    verifiers: replace those of packs, as name=verifier, with verifier_options as name.option=value.
        packs=gsm8k,chats verifiers=chats=reward_model verifier_options=chats.model=org/name
    """
    parsed = [parse_part(part, "task 'mixture', pack") for part in packs]
    names = [alias for alias, _, _ in parsed]
    if not parsed or len(set(names)) < len(names):
        raise ValueError(
            f"task 'mixture', packs {','.join(packs)!r}: expected different packs; alias=name for the same"
        )
    given = options_of("task 'mixture', option", options, names)
    chosen: dict[str, str] = {}
    for pack, verifier in map(split_verifier, verifiers):
        if pack in chosen:
            raise ValueError(f"task 'mixture', verifiers: {pack} has two verifiers; expected one")
        chosen[pack] = verifier
    if unknown := [alias for alias in chosen if alias not in names]:
        raise ValueError(f"task 'mixture', verifiers: no pack {unknown[0]!r}; expected one of {', '.join(names)}")
    settings = options_of("task 'mixture', verifier option", verifier_options, list(chosen))
    parts: dict[str, tuple[Task, float]] = {}
    for alias, spec, weight in parsed:
        made: Any = make_task(spec, **given[alias])
        if alias in chosen:
            # Without a fingerprint, so that it is checked and sealed again with this verifier.
            made = replace(made, verifier=make_verifier(chosen[alias], **settings[alias]), fingerprint="")
        parts[alias] = (made, weight)
    return mix(parts, seed=seed)


def options_of(what: str, items: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the options of each name, of items `name.option=value`. Raises ValueError for any other item."""
    given: dict[str, dict[str, str]] = {name: {} for name in names}
    for item in items:
        target, equals, value = item.partition("=")
        name, dot, option = target.rpartition(".")
        if not equals or not dot or name not in given:
            known = ", ".join(names) or "those of `verifiers`, of which there are none"
            raise ValueError(f"{what} {item!r}: expected pack.option=value, pack of {known}")
        if option in given[name]:
            raise ValueError(f"{what} {item!r}: {target} is given twice")
        given[name][option] = value
    return given


def split_verifier(item: str) -> tuple[str, str]:
    """Return pack and verifier of `pack=verifier`. Raises ValueError for any other item."""
    pack, equals, verifier = item.partition("=")
    if not (pack and equals and verifier):
        raise ValueError(f"task 'mixture', verifiers {item!r}: expected pack=verifier")
    return pack, verifier

"""`rlvr audit TASK`: find the faults of a task pack before training on it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from rlvr.config.settings import COUNT, SHARE, Rules
from rlvr.config.shared import TaskSettings, VerifierSettings
from rlvr.core.files.write import check_replaceable, write_whole
from rlvr.core.printable import printable
from rlvr.core.registry import make_task
from rlvr.core.traits import VerifierTraits
from rlvr.core.types import Problem, Task, Verdict, Verifier
from rlvr.tasks.base import is_weak, normalize_prompt, prompt_digest, seal_task
from rlvr.tasks.contamination import HeldOut
from rlvr.tasks.mixture import options_of
from rlvr.verifiers.runner import Runner
from rlvr.verifiers.runner.base import check_references

from .arguments import Positional, parse
from .task import apply_verifier, check_names, make_pack

EXAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class AuditArgs(VerifierSettings, TaskSettings):
    """Check a task pack: overlap, duplicates, references, and what its verifier accepts and rejects.

    Exit code 1 where a check fails.
    """

    task: Positional[str] = field()  # required, unlike that of training
    max_problems: Annotated[int | None, COUNT] = None
    """Verify references of the first N problems of each split only."""
    against: tuple[str, ...] = ()
    """Packs whose held-out problems must not be trained on: training prompts that repeat one are listed."""
    against_option: tuple[str, ...] = ()
    """Options of those packs, as pack.option=value."""
    ngram: Annotated[int, COUNT] = 13
    """Words of the n-grams that prompts are compared by; 13 as GPT-3's authors, 8 is usual too."""
    ngram_share: Annotated[float, SHARE] = 0.0
    """Share of the n-grams of a held-out prompt that a training prompt must have to repeat it. 0: one will do."""
    found: Path | None = None
    """File for the ids of the training problems that repeat a held-out one (JSON Lines), for --run.leave-out."""

    def rules(self, at: str) -> Rules:
        alone = self.against or not (self.against_option or self.found)
        found = self.found
        return [
            *super().rules(at),
            (bool(alone), f"{at}against-option and {at}found are about {at}against, which is not given"),
            (found is None or found.parent.is_dir(), f"{at}found {found}: there is no folder {found and found.parent}"),
        ]


@dataclass(frozen=True)
class CheckResult:
    """The result of one check: how many of `checked` items fail it, with examples. A note never fails the audit."""

    check: str
    checked: int
    failed: int
    examples: tuple[str, ...] = ()
    note: bool = False

    def __str__(self) -> str:
        mark = "note" if self.note and self.failed else "FAIL" if self.failed else "ok"
        lines = [f"{mark:4}  {self.check}: {self.failed} of {self.checked}"]
        return "\n".join(lines + [f"        {example}" for example in self.examples])


def main(argv: Sequence[str]) -> int:
    args = parse(AuditArgs, argv, prog="rlvr audit", description=AuditArgs.__doc__ or "")
    args.check("--")
    if args.found is not None:
        check_replaceable(args.found, "--found", (b'"held_out": ',))
    check_names(args)
    task, refusal = seal(make_pack(args, "--"))
    task = apply_verifier(task, args, "--")
    fingerprint = f", fingerprint {task.fingerprint}" if task.fingerprint else ""
    sizes = f"{len(task.train)} train, {len(task.test)} test, {len(task.demonstrations)} demonstrations"
    print(printable("\n".join((f"{task.name}: {sizes}{fingerprint}", *task.split_notes, *task.notes))))
    failed = False
    if args.against:
        finding = find_contamination(task, args)
        print(printable(str(finding)))
        failed = bool(finding.failed)
    with Runner(task.verifier, workers=args.workers, timeout=args.timeout) as runner:
        for finding in chain([refusal], audit(task, runner, args.max_problems)):
            print(printable(str(finding)))
            failed |= bool(finding.failed) and not finding.note
    return int(failed)


def find_contamination(task: Task, args: AuditArgs) -> CheckResult:
    """Find training problems and demonstrations that repeat a held-out problem. Write their ids to --found."""
    options = options_of("--against-option", args.against_option, args.against)
    packs = {pack: held_out(pack, options[pack]) for pack in args.against}
    trained = {problem.id: problem for problem in (*task.train, *(problem for problem, _ in task.demonstrations))}
    if not trained:
        raise ValueError(f"task {args.task!r} has no problems to train on; there is nothing to compare")
    matches = HeldOut(packs, size=args.ngram, share=args.ngram_share).matches(list(trained.values()))
    examples = [str(match) for match in matches[:EXAMPLES]]
    if args.found is not None:
        lines = []
        for row in map(asdict, matches):
            name = row.pop("problem")
            lines.append(json.dumps({"id": name, "prompt": prompt_digest(trained[name].prompt), **row}) + "\n")
        write_whole(args.found, "".join(lines))
        examples.append(f"written to {args.found}; `rlvr train --run.leave-out {args.found}` trains without them")
    exact = sum(match.exact for match in matches)
    sizes = ", ".join(f"{len(problems)} of {pack}" for pack, problems in packs.items())
    check = f"training prompts that repeat held-out ones ({sizes}; {exact} exact, others by {args.ngram}-grams)"
    return CheckResult(check, len(trained), len(matches), tuple(examples))


def held_out(pack: str, options: dict[str, str]) -> Sequence[Problem]:
    """Return the held-out problems of a pack, made with its options. Raise ValueError where it has none."""
    problems: Sequence[Problem] = make_task(pack, **options).test
    if not len(problems):
        raise ValueError(f"--against {pack}: the pack has no held-out problems")
    return problems


def seal(task: Task) -> tuple[Task, CheckResult]:
    """Check a pack as `rlvr train` does. Return it (with a fingerprint unless it is refused) and the result."""
    refusals: tuple[str, ...] = ()
    try:
        task = seal_task(task)
    except ValueError as error:
        refusals = (str(error),)
    return task, CheckResult("packs that `rlvr train` refuses", 1, len(refusals), refusals)


def audit(task: Task, runner: Runner, max_problems: int | None = None) -> Iterator[CheckResult]:
    """Yield the result of every check of a pack, cheap ones first. `runner` runs the pack's verifier."""
    parts = {
        "demonstrations": [problem for problem, _ in task.demonstrations],
        "train": list(task.train),
        "test": list(task.test),
    }
    yield find_overlap(parts)
    for part, problems in parts.items():
        if problems:
            yield find_repeats(part, problems)
    problems = [*parts["train"][:max_problems], *parts["test"][:max_problems]]
    yield find_unreadable(task, problems)
    yield from verifier_checks(problems, task.verifier, runner)
    yield from null_checks(task, {part: parts[part][:max_problems] for part in ("train", "test")}, runner)
    if task.demonstrations and task.environment is None:
        yield count_wrong_demonstrations(task, runner, max_problems)


def find_overlap(parts: dict[str, list[Problem]]) -> CheckResult:
    """Find prompts that occur in more than one split."""
    where: dict[str, dict[str, str]] = {}
    for part, problems in parts.items():
        for problem in problems:
            where.setdefault(normalize_prompt(problem.prompt), {}).setdefault(part, problem.id)
    shared = [" and ".join(found.values()) for found in where.values() if len(found) > 1]
    return CheckResult("prompts in more than one part", len(where), len(shared), tuple(shared[:EXAMPLES]))


def find_repeats(part: str, problems: Sequence[Problem]) -> CheckResult:
    """Find problems whose prompt occurred before in the same split."""
    counts = Counter(normalize_prompt(problem.prompt) for problem in problems)
    examples = tuple(f"{count} times: {prompt[:80]}" for prompt, count in counts.most_common(EXAMPLES) if count > 1)
    return CheckResult(f"repeated prompts in {part}", len(problems), len(problems) - len(counts), examples, note=True)


def find_unreadable(task: Task, problems: Sequence[Problem]) -> CheckResult:
    bad = []
    for problem in problems:
        try:
            check_references(task.verifier, [problem])
        except ValueError as error:
            bad.append(str(error))
    return CheckResult("unreadable references", len(problems), len(bad), tuple(bad[:EXAMPLES]))


def gold_answer(problem: Problem) -> str | None:
    """Return an answer that the verifier must accept: info["answer"], else a reference that is text or a number."""
    if "answer" in problem.info:
        return str(problem.info["answer"])
    reference = problem.reference
    return str(reference) if isinstance(reference, (str, int, float)) and not isinstance(reference, bool) else None


def box(answer: str) -> str:
    """Return an answer in a box, as prompts ask for it."""
    return f"The answer is \\boxed{{{answer}}}."


def perturb(answer: str) -> str:
    """Return a wrong answer: the last whole number raised by one, else the letter of a choice, else "+ 1" appended."""
    number = re.search(r"\d+(?!.*\d)", answer, re.DOTALL)
    if number is not None:
        return answer[: number.start()] + str(int(number.group()) + 1) + answer[number.end() :]
    choice = re.fullmatch(r"(.*?\W|)([A-H])(\W*)", answer)
    if choice is not None:
        return f"{choice[1]}{chr(ord(choice[2]) + 1)}{choice[3]}"
    return f"{answer} + 1"


def verifier_checks(problems: Sequence[Problem], verifier: Verifier, runner: Runner) -> Iterator[CheckResult]:
    """Run the verifier on correct answers, on altered ones and on empty completions."""
    answers = [(problem, answer) for problem in problems if (answer := gold_answer(problem)) is not None]
    if answers:
        yield find_rejected_gold(answers, runner)
        wrong: dict[bool, list[tuple[Problem, str]]] = {False: [], True: []}
        for problem, answer in answers:
            wrong[has_open_answers(verifier, problem)].append((problem, box(perturb(answer))))
        if wrong[False]:
            yield find_accepted("wrong answers accepted", wrong[False], runner)
        if wrong[True]:
            check = "altered answers accepted, where several may be right"
            yield replace(find_accepted(check, wrong[True], runner), note=True)
    if unknown := len(problems) - len(answers):
        yield CheckResult("references that are not an answer, not checked", len(problems), unknown, note=True)
    yield find_accepted("empty completions accepted", [(problem, "") for problem in problems], runner)


def judges_of(verifier: Any, problem: Problem) -> Iterator[tuple[VerifierTraits, Problem]]:
    """Yield the traits and the problem of a verifier and of each component that judges the problem."""
    traits = VerifierTraits.of(verifier)
    yield traits, problem
    for name, component in traits.components.items():
        its = traits.problem_for(name, problem) if traits.problem_for is not None else None
        if its is not None:
            yield from judges_of(component, its)


def has_open_answers(verifier: Any, problem: Problem) -> bool:
    """Return whether other answers than the pack's may be right, to all parts of a verifier that judge the problem."""
    found = [
        traits.open_answers is not None and traits.open_answers(its.reference)
        for traits, its in judges_of(verifier, problem)
        if traits.open_answers is not None or not traits.components
    ]
    return bool(found) and all(found)


def null_checks(task: Task, parts: dict[str, Sequence[Problem]], runner: Runner) -> Iterator[CheckResult]:
    """Run completions that solve nothing, where the verifier offers such. Those of the test part are only listed."""
    offered = {
        part: [
            (problem, what, text)
            for problem in problems
            for traits, its in judges_of(task.verifier, problem)
            if traits.null_completions is not None
            for what, text in traits.null_completions(its.reference).items()
        ]
        for part, problems in parts.items()
    }
    for part, problems in parts.items() if any(offered.values()) else ():
        verdicts = runner.verify([(problem, text) for problem, _, text in offered[part]])
        found: dict[str, list[str]] = {}
        for (problem, what, _), verdict in zip(offered[part], verdicts):
            if verdict.correct or verdict.score is None:
                found.setdefault(problem.id, []).append(what if verdict.correct else f"{what}: {verdict.reason}")
        weak = [problem.id for problem in problems if problem.id not in found and is_weak(task.verifier, problem)]
        lines = tuple(f"{name}: weak, passed by a program that {', '.join(what[:3])}" for name, what in found.items())
        check, note = f"problems of {part} that null programs pass", part == "test"
        yield CheckResult(check, len(problems), len(found), lines, note)
        yield CheckResult(f"other weak problems of {part}", len(problems), len(weak), tuple(weak[:EXAMPLES]), True)


def find_rejected_gold(answers: Sequence[tuple[Problem, str]], runner: Runner) -> CheckResult:
    """Find correct answers that are rejected in a box, and also without one, as verifiers of bare text want them."""
    first = runner.verify([(problem, box(answer)) for problem, answer in answers])
    again = [pair for pair, verdict in zip(answers, first) if not verdict.correct]
    bad = [describe(pair, verdict) for pair, verdict in zip(again, runner.verify(again)) if not verdict.correct]
    examples = bad[:EXAMPLES]
    if bad and any("answer" not in problem.info for problem, _ in again):
        examples.append('if the reference is not an answer, give one that must be accepted as Problem.info["answer"]')
    return CheckResult("correct answers rejected", len(answers), len(bad), tuple(examples))


def find_accepted(check: str, pairs: Sequence[tuple[Problem, str]], runner: Runner) -> CheckResult:
    """Find completions that should be rejected and are accepted, or that the verifier fails on."""
    verdicts = runner.verify(pairs)
    bad = [
        describe(pair, verdict) for pair, verdict in zip(pairs, verdicts) if verdict.correct or verdict.score is None
    ]
    return CheckResult(check, len(pairs), len(bad), tuple(bad[:EXAMPLES]))


def count_wrong_demonstrations(task: Task, runner: Runner, max_problems: int | None) -> CheckResult:
    """Count demonstrations that the verifier rejects. It is a note, since a pack may hold mistakes on purpose."""
    pairs = [(problem, said) for problem, said in task.demonstrations[:max_problems] if isinstance(said, str)]
    bad = sum(not verdict.correct for verdict in runner.verify(pairs))
    return CheckResult("demonstrations that do not verify", len(pairs), bad, note=True)


def describe(pair: tuple[Problem, str], verdict: Verdict) -> str:
    """Return a problem, a completion and its verdict as one line."""
    problem, completion = pair
    reason = f" ({verdict.reason})" if verdict.reason else ""
    return f"{problem.id}: {completion[-60:]!r} against {str(problem.reference)[:60]!r}: {verdict.status}{reason}"

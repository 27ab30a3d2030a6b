"""Critique and revision: a model answers, criticizes its answer by a principle, and answers again.

This is the first phase of Constitutional AI (arXiv:2212.08073, section 3). The last revisions become demonstrations for
fine-tuning, together with helpful answers.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rlvr.config.settings import COUNT, Rules
from rlvr.core.seeding import derive_seed
from rlvr.core.types import Problem, Prompt, RunError, Verifier
from rlvr.training.evaluation.passk import mean_with_interval
from rlvr.training.sft.demonstrations import read_demonstrations

from .sampled import (
    Constitution,
    SampledArgs,
    Writer,
    choose_constitution,
    fill_form,
    form_rule,
    write_rows,
)

if TYPE_CHECKING:
    from .stages import Made, Stages

CRITIQUE = "{prompt}\n\n{answer}\n\n{critique_request}\n\n"
REVISION = "{prompt}\n\n{answer}\n\n{critique_request}\n\n{critique}\n\n{revision_request}\n\n"
FIELDS = {
    "critique_form": {"prompt", "answer", "critique_request"},
    "revision_form": {"prompt", "answer", "critique_request", "critique", "revision_request"},
}


@dataclass(frozen=True, kw_only=True)
class RevisionArgs(SampledArgs):
    """Answers of a model to training problems, criticized and revised by itself."""

    constitution: Path | None = None
    """JSON Lines file with critique and revision: what asks for them, drawn for each round. None: the recipe's."""
    revisions: Annotated[int, COUNT] = 1
    """Rounds of critique and revision."""
    critique_form: str = CRITIQUE
    """What a model without a chat template reads before its critique. With one the texts are messages."""
    revision_form: str = REVISION
    """What a model without a chat template reads before its revision."""
    add: Path | None = None
    """JSON Lines file of demonstrations (prompt, completion) that are added to the revisions: helpful answers."""

    def rules(self, at: str) -> Rules:
        return [
            *super().rules(at),
            *(form_rule(at, name, getattr(self, name), known) for name, known in FIELDS.items()),
        ]


@dataclass
class Draft:
    """A problem's answers, from the first to the last revision. None: a text was cut off, and nothing follows."""

    problem: Problem
    answers: list[str | None]
    critiques: list[str] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)


def revise_answers(
    pipeline: Stages, name: str, args: RevisionArgs, constitution: Constitution, *, policy: Made
) -> Made:
    """Run a stage that criticizes and revises; the result's folder has a data set, `data.jsonl`.

    Measured: the share that the verifier accepts of the first answers and after each round.
    """
    args = pipeline.with_flags(name, dataclasses.replace(args, model=str(policy.path), seed=pipeline.seed))
    args.check()
    used = choose_constitution(args.constitution, constitution, "requests")
    settings = {**dataclasses.asdict(args), "requests": used.requests}
    return pipeline.make(name, settings, lambda folder: write_revisions(args, used, folder))


def write_revisions(args: RevisionArgs, constitution: Constitution, folder: Path) -> dict[str, Any]:
    """Write data.jsonl, and revisions.jsonl with every text; return what was measured.

    Raises RunError where all texts were cut off.
    """
    from rlvr.commands.sample import DATA

    added = [] if args.add is None else read_demonstrations(args.add)
    if any(not isinstance(said, str) for _, said in added):
        raise ValueError(f"{args.add}: it has completions of several turns; expected those of one")
    task, problems = args.problems()
    writer = Writer(args)
    drafts = [Draft(problem, answers) for problem, answers in zip(problems, ask_each(writer, problems, "answer"))]
    for number in range(args.revisions):
        revise(writer, drafts, constitution, number)
    done = [draft for draft in drafts if draft.answers[-1] is not None]
    if not done:
        raise RunError(
            f"no revisions: the texts of all {len(drafts)} problems were cut off at {args.max_new_tokens} tokens or "
            "too long for the model; set max_new_tokens higher"
        )
    rows: list[dict[str, Any]] = [{"prompt": draft.problem.prompt, "completion": draft.answers[-1]} for draft in done]
    rows += [{"prompt": problem.prompt, "completion": said} for problem, said in added]
    write_rows(folder / DATA, rows)
    texts = [{name: value for name, value in vars(draft).items() if name != "problem"} for draft in drafts]
    own = [{"id": draft.problem.id, "prompt": draft.problem.prompt} for draft in drafts]
    write_rows(folder / "revisions.jsonl", [one | more for one, more in zip(own, texts)])
    counts = {"problems": len(drafts), "revised": len(done), "added": len(rows) - len(done)}
    return counts | measure_revisions(args, task.verifier, done)


def ask_each(writer: Writer, problems: Sequence[Problem], key: str) -> list[list[str | None]]:
    """Return one completion of each problem."""
    return writer.write([p.id for p in problems], [p.prompt for p in problems], samples=1, key=key)


def revise(writer: Writer, drafts: Sequence[Draft], constitution: Constitution, number: int) -> None:
    """Add a critique and a revision to every draft whose texts are whole."""
    args = writer.args
    assert isinstance(args, RevisionArgs)
    going = [draft for draft in drafts if draft.answers[-1] is not None]
    for draft in going:
        draw = random.Random(derive_seed(args.seed, "request", draft.problem.id, number))
        draft.requests.append(draw.choice(constitution.requests))
    chat = writer.policy.chat
    questions = [dataclasses.replace(draft.problem, prompt=critique_prompt(draft, args, chat)) for draft in going]
    said = ask_each(writer, questions, f"critique {number}")
    for draft, (critique,) in zip(going, said, strict=True):
        draft.critiques.append(critique or "")
        if critique is None:
            draft.answers.append(None)
    going = [draft for draft in going if draft.answers[-1] is not None]
    questions = [dataclasses.replace(draft.problem, prompt=revision_prompt(draft, args, chat)) for draft in going]
    for draft, (answer,) in zip(going, ask_each(writer, questions, f"revision {number}"), strict=True):
        draft.answers.append(answer or None)


def texts_of(draft: Draft) -> dict[str, str]:
    critique_request, revision_request = draft.requests[-1]
    prompt = draft.problem.prompt
    return {
        "prompt": prompt if isinstance(prompt, str) else "",
        "answer": str(draft.answers[-1]),
        "critique_request": critique_request,
        "critique": draft.critiques[-1] if draft.critiques else "",
        "revision_request": revision_request,
    }


def critique_prompt(draft: Draft, args: RevisionArgs, chat: bool) -> Prompt:
    """Return what a critique follows: the problem, the latest answer, and the request."""
    texts = texts_of(draft)
    if not chat:
        return fill_form(args.critique_form, texts)
    own = draft.problem.prompt
    before = [{"role": "user", "content": own}] if isinstance(own, str) else [dict(message) for message in own]
    answer = {"role": "assistant", "content": texts["answer"]}
    return [*before, answer, {"role": "user", "content": texts["critique_request"]}]


def revision_prompt(draft: Draft, args: RevisionArgs, chat: bool) -> Prompt:
    """Return what a revision follows: all that the critique followed, the critique, and the request."""
    texts = texts_of(draft)
    if not chat:
        return fill_form(args.revision_form, texts)
    before = critique_prompt(draft, args, chat)
    assert not isinstance(before, str)
    critique = {"role": "assistant", "content": texts["critique"]}
    return [*before, critique, {"role": "user", "content": texts["revision_request"]}]


def measure_revisions(args: RevisionArgs, verifier: Verifier, drafts: Sequence[Draft]) -> dict[str, Any]:
    """Return the share of right answers before and after each round, with intervals."""
    from rlvr.verifiers.runner import Runner

    found: dict[str, Any] = {}
    with Runner(verifier, workers=args.workers, timeout=args.timeout) as runner:
        for number in range(args.revisions + 1):
            verdicts = runner.verify([(draft.problem, str(draft.answers[number])) for draft in drafts])
            right = [verdict.correct for verdict in verdicts if verdict.score is not None]
            found |= mean_with_interval("right at first" if not number else f"right after revision {number}", right)
    return found

"""Preference pairs labelled by a judge that reads a principle: RL from AI feedback.

The second phase of Constitutional AI (arXiv:2212.08073, section 4). Completions of a policy are compared in pairs
and in both orders, by a principle drawn for each comparison. `rlvr rm --pairs.file` reads the pairs. The paper's reward
model learns the judge's probabilities; `rlvr rm` learns only which completion was chosen, and `confidence` leaves out
pairs of which the judge is not sure.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rlvr.commands.arguments import key_values
from rlvr.config.reward_model import RewardConfig
from rlvr.config.settings import ADVANCED, COUNT, SHARE, TWO_OR_MORE, Bound, Rules
from rlvr.core.files.models import check_path
from rlvr.core.seeding import derive_seed
from rlvr.core.types import Problem, RunError, Verifier
from rlvr.reward_model.preferences import PreferencePair, read_pairs, write_pairs

from .pair_judge import FORM, LEAD, Comparison, LocalJudge, PairJudge, Preference, ServedJudge, answer_of, both_orders
from .sampled import Constitution, SampledArgs, Writer, choose_constitution, form_rule, model_config, share, write_rows

if TYPE_CHECKING:
    from .stages import Made, Stages

PAIRS = "pairs.jsonl"
CONFIDENCE = Bound(0.5, 1 - 1e-9)


@dataclass(frozen=True, kw_only=True)
class JudgedPairsArgs(SampledArgs):
    """Pairs of a model's completions of training problems, labelled by a judge."""

    judge: str = ""
    """Hub name or folder of the causal LM that compares, in this process."""
    judge_option: tuple[str, ...] = ()
    """Options of a judge on a server instead, as key=value: those of the verifier llm_judge (url, model, votes)."""
    constitution: Path | None = None
    """JSON Lines file with principle: what a judge compares by, drawn for each pair. None: the recipe's."""
    form: str = FORM
    """What a judge in this process is asked, with {principle}, {prompt}, {first} and {second}."""
    lead: str = LEAD
    """How the reply of a judge in this process begins, up to the label."""
    labels: tuple[str, str] = ("A", "B")
    """Labels of the first and the second answer, for a judge in this process."""
    separators: Annotated[str, ADVANCED] = ""
    """Characters that divide the form's parts, taken out of the answers. Empty: marks with a code around each."""
    samples: Annotated[int, TWO_OR_MORE] = 4
    """Completions sampled per problem."""
    per_problem: Annotated[int, COUNT] = 2
    """Maximum number of comparisons per problem: of two different completions, at random."""
    confidence: Annotated[float, CONFIDENCE] = 0.5
    """Least probability of the better completion, the mean over both orders; pairs below it are left out."""
    max_unread: Annotated[float, SHARE] = 0.1
    """Share of the comparisons that may be unread in one order; more end the stage."""
    add: Path | None = None
    """JSON Lines file of pairs that are added: of helpfulness, for example, labelled in another way."""

    def rules(self, at: str) -> Rules:
        """Return rules about the judge and its form."""
        one = bool(self.judge) != bool(self.judge_option)
        return [
            *super().rules(at),
            (one, f"{at}judge: name a model, or give {at}judge_option url=... model=... for one on a server"),
            form_rule(at, "form", self.form, {"principle", "prompt", "first", "second"}),
        ]


def names_judge(args: JudgedPairsArgs) -> bool:
    """Return whether the settings name a judge."""
    return bool(args.judge or args.judge_option)


def label_by_judge(
    pipeline: Stages,
    name: str,
    args: JudgedPairsArgs,
    constitution: Constitution,
    *,
    policy: Made,
    judge: Made | None = None,
) -> Made:
    """Run a stage that labels pairs; the result's folder has `pairs.jsonl`. judge: an earlier stage's model.

    Measured: the share of comparisons whose orders agree, and how often the label is the verifier's.
    """
    args = pipeline.with_flags(name, dataclasses.replace(args, model=str(policy.path), seed=pipeline.seed))
    if args.judge:
        check_path(args.judge)
    elif judge is not None and not args.judge_option:
        args = dataclasses.replace(args, judge=str(judge.path))
    args.check()
    used = choose_constitution(args.constitution, constitution, "principles")
    settings = {**asdict(args), "principles": used.principles}
    return pipeline.make(name, settings, lambda folder: write_judged(args, used, folder))


def open_judge(args: JudgedPairsArgs) -> PairJudge:
    """Return the judge that the settings name. Raises ValueError for one that cannot be used."""
    if args.judge_option:
        return ServedJudge(key_values(args.judge_option, "judge_option"))
    from rlvr.model.load.policy import load_policy

    config = dataclasses.replace(model_config(args.judge, args), system_prompt=None)
    return LocalJudge(
        load_policy(config),
        form=args.form,
        lead=args.lead,
        labels=args.labels,
        separators=args.separators,
        batch_size=args.batch_size,
    )


def write_judged(args: JudgedPairsArgs, constitution: Constitution, folder: Path) -> dict[str, Any]:
    """Write pairs.jsonl, and comparisons.jsonl with every comparison; return what was measured.

    Raises RunError where too many comparisons are unread, and where no pair is left.
    """
    added = [] if args.add is None else read_pairs(args.add)
    task, problems = args.problems()
    judge = open_judge(args)
    drawn = draw_comparisons(Writer(args), problems, constitution)
    if not drawn:
        raise RunError(
            f"nothing to compare: none of {len(problems)} problems has two different completions that end within "
            f"{args.max_new_tokens} tokens; sample more, or at a higher temperature"
        )
    preferences = both_orders(judge, [comparison for _, comparison in drawn])
    lines = [{"id": p.id, **asdict(c), "preference": asdict(said)} for (p, c), said in zip(drawn, preferences)]
    write_rows(folder / "comparisons.jsonl", lines)
    check_unread(args, preferences)
    found = (label_pair(args, *one, preference) for one, preference in zip(drawn, preferences, strict=True))
    rows = [row for row in found if row is not None]
    if not rows:
        raise RunError(f"no pairs: of none of {len(drawn)} comparisons the judge is sure by {args.confidence}")
    write_rows(folder / PAIRS, [*(pair for _, pair in rows), *map(asdict, added)])
    orders = [preference.orders for preference in preferences if preference.orders is not None]
    return {
        "comparisons": len(drawn),
        "pairs": len(rows),
        "added": len(added),
        "unread": sum(preference.first is None for preference in preferences),
        "unreadable by one completion, which loses": sum(p.first is not None and not p.orders for p in preferences),
        **share("orders agree", [preference.agree for preference in preferences if preference.orders]),
        **({"mean probability of the first label": sum(map(sum, orders)) / (2 * len(orders))} if orders else {}),
        **agreement(args, task.verifier, rows),
    }


def draw_comparisons(
    writer: Writer, problems: Sequence[Problem], constitution: Constitution
) -> list[tuple[Problem, Comparison]]:
    """Return comparisons of different completions of each problem, in a random order, each with a principle.

    Left out are completions that were cut off or are blank, and those whose thinking does not end.
    """
    args = writer.args
    assert isinstance(args, JudgedPairsArgs)
    names, prompts = [problem.id for problem in problems], [problem.prompt for problem in problems]
    found = []
    for problem, texts in zip(problems, writer.write(names, prompts, samples=args.samples, key="judged")):
        answers = {answer: text for text in texts if text and (answer := answer_of(text)).strip()}
        stream = random.Random(derive_seed(args.seed, "comparisons", problem.id))
        pairs = list(itertools.combinations(answers.values(), 2))
        stream.shuffle(pairs)
        for pair in pairs[: args.per_problem]:
            first, second = stream.sample(pair, 2)
            principle = stream.choice(constitution.principles)
            found.append((problem, Comparison(problem.prompt, first, second, principle)))
    return found


def check_unread(args: JudgedPairsArgs, preferences: Sequence[Preference]) -> None:
    """Raise RunError where more comparisons than may be are unread, or all."""
    reasons = Counter(preference.reason for preference in preferences if preference.first is None)
    unread = reasons.total()
    if unread > args.max_unread * len(preferences) or unread == len(preferences):
        raise RunError(
            f"{unread} of {len(preferences)} comparisons could not be read, at most {args.max_unread:.0%} may be; "
            f"the most frequent reason: {reasons.most_common(1)[0][0]}"
        )


def label_pair(
    args: JudgedPairsArgs, problem: Problem, comparison: Comparison, preference: Preference
) -> tuple[Problem, Mapping[str, Any]] | None:
    """Return a pair as `rlvr rm` reads it, with probability and principle; None where the judge is not sure."""
    first = preference.first
    if first is None or first == 0.5 or max(first, 1 - first) < args.confidence:
        return None
    better, worse = comparison.first, comparison.second
    if first < 0.5:
        better, worse = worse, better
    pair = asdict(PreferencePair(comparison.prompt, better, worse))
    return problem, {**pair, "probability": max(first, 1 - first), "principle": comparison.principle}


def agreement(
    args: JudgedPairsArgs, verifier: Verifier, rows: Sequence[tuple[Problem, Mapping[str, Any]]]
) -> dict[str, Any]:
    """Return how often the judge prefers what the verifier accepts, of pairs of which it accepts one only.

    The interval is over problems.
    """
    from rlvr.verifiers.runner import Runner

    asked = [(problem, pair[side]) for problem, pair in rows for side in ("chosen", "rejected")]
    with Runner(verifier, workers=args.workers, timeout=args.timeout) as runner:
        verdicts = iter(runner.verify(asked))
    by_problem: dict[str, list[bool]] = {}
    for (problem, _), chosen, rejected in zip(rows, verdicts, verdicts, strict=True):
        if chosen.score is not None and rejected.score is not None and chosen.correct != rejected.correct:
            by_problem.setdefault(problem.id, []).append(chosen.correct)
    told_apart = {"told apart by the verifier": sum(map(len, by_problem.values()))}
    return told_apart | share("label is the verifier's", [sum(own) / len(own) for own in by_problem.values()])


def label_by_verifier(pipeline: Stages, name: str, config: RewardConfig, *, policy: Made) -> Made:
    """Run a stage that writes pairs of the policy's completions, which a verifier labels. No model is trained.

    Of the settings, those of `rlvr rm`, only the pairs' are read. The result's folder has `pairs.jsonl`.
    """
    from rlvr.commands.console import Display
    from rlvr.commands.rm.launch import pack, with_policy
    from rlvr.commands.rm.training import sample_pairs

    run = dataclasses.replace(config.run, seed=pipeline.seed)
    config = pipeline.with_flags(name, with_policy(dataclasses.replace(config, run=run), policy.path))

    def make(folder: Path) -> dict[str, Any]:
        config.check()
        pairs = sample_pairs(config, *pack(config.pairs), Display())
        write_pairs(folder / PAIRS, pairs)
        return {"pairs": len(pairs)}

    return pipeline.make(name, {"pairs": asdict(config.pairs), "seed": pipeline.seed}, make)

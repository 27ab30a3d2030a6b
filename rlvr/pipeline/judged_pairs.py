"""Preference pairs labelled by a judge that reads a principle: RL from AI feedback.

The second phase of Constitutional AI (arXiv:2212.08073, section 4). Completions of a policy are compared in pairs
and in both orders, by a principle drawn for each comparison. `rlvr rm --pairs.file` reads the pairs. The paper's reward
model learns the judge's probabilities; `rlvr rm` learns only which completion was chosen, and `confidence` leaves out
pairs of which the judge is not sure.

A judge says which of two answers is better, as a probability that no answer can set itself. A causal LM in this process
answers by the log-probabilities of two labels (section 4.1). A served model answers by its reply, through the verifier
`llm_judge`. An answer is data. It stands between marks with a code that depends on all texts, so that it cannot contain
the marks. Control tokens of chat templates and tags of thinking are broken up in it. The verdict is read behind the
question, where no answer reaches.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from rlvr.config import ModelConfig
from rlvr.config.reward_model import RewardConfig
from rlvr.config.settings import ADVANCED, COUNT, SHARE, TWO_OR_MORE, Bound, Rules, carry
from rlvr.core.files.models import check_path
from rlvr.core.registry import key_values, make_verifier
from rlvr.core.seeding import derive_seed
from rlvr.core.types import Problem, Prompt, RunError, Verifier
from rlvr.reward_model.preferences import PreferencePair, read_pairs, write_pairs
from rlvr.training.evaluation.passk import mean_with_interval
from rlvr.verifiers.extract.sections import THINKING, after_thinking
from rlvr.verifiers.llm_judge import BREAK, NOT_REACHED, PLAIN_ANSWER, break_control_tokens, derive_code, flatten_prompt

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
    from rlvr.model.load.policy import Policy

    from .stages import Made, Stages

# --- judges -----------------------------------------------------------------------------------------------------------

FORM = Path(__file__).with_name("compare.txt").read_text("utf-8").rstrip()
LEAD = "The better answer is ("
SERVED_FORM = Path(__file__).with_name("compare_served.txt").read_text("utf-8").rstrip()
LEAST_MASS = 0.01


@dataclass(frozen=True)
class Comparison:
    """Two completions of a prompt, in the order in which a judge reads their answers, and the principle."""

    prompt: Prompt
    first: str
    second: str
    principle: str

    def swap(self) -> Comparison:
        """Return the comparison in the other order."""
        return replace(self, first=self.second, second=self.first)


class PairJudge(Protocol):
    """Says of comparisons, read in the order they have, how likely the first answer is the better one."""

    def preferences(self, comparisons: Sequence[Comparison]) -> list[float | str]:
        """Return a probability for each, or one line that says why it could not be read."""
        ...


@dataclass(frozen=True)
class Preference:
    """A comparison read in both orders. first: the mean probability that its first answer is better, None if unread.

    orders: the probability of the label (A) in each order, None if it was not read; reason: why not. Where one answer
    is to blame for that (see `both_orders`), the other one is preferred, and first is 1 or 0.
    """

    first: float | None
    orders: tuple[float, float] | None = None
    reason: str = ""

    @property
    def agree(self) -> bool:
        """Whether both orders prefer the same answer."""
        return self.orders is not None and (self.orders[0] > 0.5) == (self.orders[1] < 0.5)


def both_orders(judge: PairJudge, comparisons: Sequence[Comparison]) -> list[Preference]:
    """Return each comparison's preference, averaged over both orders; None where one order could not be read.

    An answer must gain nothing by making the judge's replies unreadable. So each answer of an unread comparison is
    judged beside a plain answer. If this can be read for one of the two answers only, the other one is to blame and
    loses.
    """
    found = _read_both(judge, comparisons)
    unread = [i for i, preference in enumerate(found) if preference.first is None]
    beside = [replace(comparisons[i], **{side: PLAIN_ANSWER}) for i in unread for side in ("second", "first")]
    alone = iter(_read_both(judge, beside) if beside else ())
    for i, one, other in zip(unread, alone, alone, strict=True):
        blamed = one if one.first is None else other
        if (one.first is None) != (other.first is None) and not blamed.reason.startswith(NOT_REACHED):
            found[i] = Preference(0.0 if blamed is one else 1.0, None, found[i].reason)
    return found


def _read_both(judge: PairJudge, comparisons: Sequence[Comparison]) -> list[Preference]:
    asked = [order for comparison in comparisons for order in (comparison, comparison.swap())]
    said = iter(judge.preferences(asked))
    found = []
    for one, other in zip(said, said, strict=True):
        if isinstance(one, str) or isinstance(other, str):
            found.append(Preference(None, None, one if isinstance(one, str) else str(other)))
        else:
            found.append(Preference((one + 1 - other) / 2, (one, other)))
    return found


def answer_of(completion: str) -> str:
    """Return what of a completion is compared: the part after its thinking, "" where that does not end."""
    return after_thinking(completion) or ""


def harmless_text(text: str) -> str:
    """Return a text in which nothing is a control token of a chat template, or a tag of thinking."""
    text = break_control_tokens(text)
    for tag in THINKING:
        text = text.replace(tag, tag[0] + BREAK + tag[1:])
    return text


def data_of(comparison: Comparison, separators: str) -> dict[str, str]:
    """Return prompt, first and second as a judge reads them.

    separators: characters that divide the form's parts. They become spaces in each text, so that no text makes parts of
    its own. Without separators the answers stand between marks.
    """
    answers = {"first": answer_of(comparison.first), "second": answer_of(comparison.second)}
    texts = {"prompt": flatten_prompt(comparison.prompt), **answers}
    if separators:
        table = str.maketrans(dict.fromkeys(separators, " "))
        return {name: harmless_text(text).translate(table) for name, text in texts.items()}
    shown = {name: harmless_text(text) for name, text in texts.items()}
    for name in answers:
        seal = derive_code(name, comparison.principle, *texts.values())
        shown[name] = f"<<<{seal}\n{shown[name]}\n{seal}>>>"
    return shown


class LocalJudge:
    """A causal LM in this process. Its preference is the probability of the first label against the second.

    policy: the model; it also renders the question, with its chat template if it has one. form: the question, with
    {principle}, {prompt}, {first}, {second}. lead: how its reply begins, up to the label. labels: of the two answers. A
    comparison is unread where it is too long for the model, and where the two labels together have less than LEAST_MASS
    of the probability, because then the model was about to say something else.

    Raises ValueError for labels that the tokenizer does not tell apart.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        form: str = FORM,
        lead: str = LEAD,
        labels: tuple[str, str] = ("A", "B"),
        separators: str = "",
        batch_size: int = 64,
    ) -> None:
        from rlvr.model.text.context import context_limit

        self.policy, self.form, self.separators, self.batch_size = policy, form, separators, batch_size
        self.endings = [policy.encode(lead + label) for label in labels]
        one, other = self.endings
        self.shared = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
        unknown = policy.tokenizer.unk_token_id
        if self.shared == min(len(one), len(other)) or (unknown is not None and unknown in one[self.shared :]):
            raise ValueError(f"the judge's tokenizer does not tell the labels {labels[0]!r} and {labels[1]!r} apart")
        self.limit = context_limit(policy.causal.config)

    def question(self, comparison: Comparison) -> str:
        return fill_form(self.form, {**data_of(comparison, self.separators), "principle": comparison.principle})

    def preferences(self, comparisons: Sequence[Comparison]) -> list[float | str]:
        """Return the probability that the first answer is better, or why there is none, in order."""
        rows = [self.policy.render(self.question(comparison)) for comparison in comparisons]
        longest = max(map(len, self.endings))
        found: list[float | str] = []
        for start in range(0, len(rows), self.batch_size):
            part = rows[start : start + self.batch_size]
            fits = [self.limit is None or len(row) + longest <= self.limit for row in part]
            scored = iter(self._score_labels([row for row, good in zip(part, fits) if good]))
            too_long = f"the comparison is longer than the {self.limit} tokens that the judge reads"
            found += [read(*next(scored)) if good else too_long for good in fits]
        return found

    def _score_labels(self, rows: Sequence[Sequence[int]]) -> list[tuple[float, float]]:
        """Return the log-probabilities of the two labels behind each row of token ids."""
        import torch

        from rlvr.model.logprobs.scoring import token_logprobs

        if not rows:
            return []
        whole = [[*row, *ending] for row in rows for ending in self.endings]
        shape = (len(whole), max(map(len, whole)))
        tokens = torch.full(shape, self.policy.pad_id, dtype=torch.long)
        mask = torch.zeros(shape, dtype=torch.bool)
        for i, ids in enumerate(whole):
            tokens[i, : len(ids)] = torch.tensor(ids)
            # The lead is the same in both: only what follows it counts.
            mask[i, len(rows[i // 2]) + self.shared : len(ids)] = True
        with torch.no_grad():
            sums = token_logprobs(self.policy, tokens, mask)[0].sum(-1).tolist()
        return list(zip(sums[::2], sums[1::2], strict=True))


def read(first: float, second: float) -> float | str:
    """Return the probability of the first label against the second, from the log-probabilities of both."""
    if not (math.isfinite(first) or math.isfinite(second)) or math.isnan(first) or math.isnan(second):
        return f"the judge gave the log-probabilities {first} and {second}"
    if math.exp(first) + math.exp(second) < LEAST_MASS:
        return f"the labels have less than {LEAST_MASS:.0%} of the judge's probability"
    return 1 / (1 + math.exp(min(second - first, 700.0)))


class ServedJudge:
    """A served model. Its preference is 1 or 0, by its reply, or the verifier's error where that cannot be read.

    options: those of the verifier `llm_judge` (url, model, votes, ...); a `template` must have {prompt}, {completion}
    (both answers) and {reference} (the principle). Raises ValueError for options that it does not take, and RunError
    from `preferences` where the server cannot be used.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        given = {"template": SERVED_FORM, **options}
        if int(given.get("grades", 1)) != 1:
            raise ValueError("grades: a comparison is right or wrong; leave it out")
        self.judge = make_verifier("llm_judge", **given)

    def preferences(self, comparisons: Sequence[Comparison]) -> list[float | str]:
        """Return 1 where the model says that the first answer is better, 0 where not, or why it was not read."""
        verdicts = self.judge.verify_batch([asked_of_server(comparison) for comparison in comparisons])
        return [v.reason if v.score is None or not v.reason.startswith("graded") else float(v.score) for v in verdicts]


def asked_of_server(comparison: Comparison) -> tuple[Problem, str]:
    """Return a comparison as `llm_judge` takes it: both answers are its completion, the principle the reference."""
    texts = data_of(comparison, "")
    answers = f"The answer (A):\n{texts['first']}\n\nThe answer (B):\n{texts['second']}"
    return Problem("comparison", comparison.prompt, comparison.principle), answers


# --- pairs ------------------------------------------------------------------------------------------------------------

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
        one = bool(self.judge) != bool(self.judge_option)
        return [
            *super().rules(at),
            (one, f"{at}judge: name a model, or give {at}judge_option url=... model=... for one on a server"),
            form_rule(at, "form", self.form, {"principle", "prompt", "first", "second"}),
        ]


def names_judge(args: JudgedPairsArgs) -> bool:
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

    config = carry(args, ModelConfig, name=args.judge, system_prompt=None)
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
        **mean_with_interval("orders agree", [preference.agree for preference in preferences if preference.orders]),
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
    return told_apart | mean_with_interval(
        "label is the verifier's", [sum(own) / len(own) for own in by_problem.values()]
    )


def label_by_verifier(pipeline: Stages, name: str, config: RewardConfig, *, policy: Made) -> Made:
    """Run a stage that writes pairs of the policy's completions, which a verifier labels. No model is trained.

    Of the settings, those of `rlvr rm`, only the pairs' are read. The result's folder has `pairs.jsonl`.
    """
    from rlvr.commands.console import Display
    from rlvr.commands.rm.launch import make_sampled_pack, with_policy
    from rlvr.commands.rm.training import sample_pairs

    run = dataclasses.replace(config.run, seed=pipeline.seed)
    config = pipeline.with_flags(name, with_policy(dataclasses.replace(config, run=run), policy.path))

    def make(folder: Path) -> dict[str, Any]:
        config.check()
        pairs = sample_pairs(config, *make_sampled_pack(config.pairs), Display())
        write_pairs(folder / PAIRS, pairs)
        return {"pairs": len(pairs)}

    return pipeline.make(name, {"pairs": asdict(config.pairs), "seed": pipeline.seed}, make)

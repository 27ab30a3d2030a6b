"""Judges of pairs: which of two answers is better by a principle, as a probability that no answer can set itself.

A causal LM in this process answers by the log-probabilities of two labels (Constitutional AI, arXiv:2212.08073, section
4.1). A served model answers by its reply, through the verifier `llm_judge`. An answer is data. It stands between marks
with a code that depends on all texts, so that it cannot contain the marks. Control tokens of chat templates and tags of
thinking are broken up in it. The verdict is read behind the question, where no answer reaches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rlvr.core.registry import make_verifier
from rlvr.core.types import Problem, Prompt
from rlvr.verifiers.extract.sections import THINKING, after_thinking
from rlvr.verifiers.llm_judge import BREAK, NOT_REACHED, PLAIN_ANSWER, break_control_tokens, derive_code, flatten_prompt

from .sampled import fill_form

if TYPE_CHECKING:
    from rlvr.model.load.policy import Policy

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
        """Return what the model is asked."""
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

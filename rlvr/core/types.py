"""The types that all parts share.

Shape letters in docstrings: P problems in a step, G completions of each, B rollouts in a batch (P*G for a whole step),
T padded length (prompt and completion), V vocabulary, n tokens of one completion.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random
from typing import Any, Literal, Protocol, runtime_checkable

from .seeding import derive_seed

Finish = Literal["stop", "length", "turns", "context", "error", "filter", "cut"]
Message = Mapping[str, str]
Prompt = str | Sequence[Message]


@dataclass(frozen=True, slots=True)
class Problem:
    """One question. `reference`, the right answer or the tests, is never shown to the model.

    id: unique in its pack. prompt: text, or chat messages with role and content. info: what else the pack, the verifier
    or the environment needs, such as the other columns of a file.
    """

    id: str
    prompt: Prompt
    reference: Any = None
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """What an environment says to the model between two of its turns.

    text: what the model reads; the chat template frames it. role: of the chat message. reward: for the turn before it,
    added to that of the verdict. void: that turn had neither a call nor an answer; `rollout.mask_void` leaves its
    tokens out of training. calls, failed: number of tool calls that it answers, and how many the model got wrong.
    payload: (start, end) of parts of `text`. If the reply is too long only they are cut, so that the marks around them
    stay whole; without them the text is cut at its end.
    """

    text: str
    role: str = "tool"
    reward: float = 0.0
    void: bool = False
    calls: int = 0
    failed: int = 0
    payload: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a rollout with an environment: the model's (role "assistant"), or a reply to it (its role).

    length: number of its token ids in the completion; a reply includes the template's frame. reward, void: of a turn of
    the model, taken from the reply to it. calls, failed: of a reply.
    """

    role: str
    text: str
    length: int
    reward: float = 0.0
    void: bool = False
    calls: int = 0
    failed: int = 0

    @property
    def sampled(self) -> bool:
        """Whether the model sampled these tokens. Only they are ever trained on."""
        return self.role == "assistant"


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled answer; with an environment, everything after the prompt.

    `token_ids` has the end-of-sequence token, `text` has not; a stop string stays at the end of `text`. `logprobs`: one
    for each token id, after temperature and top-p; 0 under greedy sampling and for tokens of replies. `finish_reason`:
    "length" for a limit of tokens, "filter" if a server withheld the rest.

    With an environment, `turns` covers all of `token_ids` and begins and ends with a turn of the model. `text` is the
    last turn, which verifiers see. `verdict` is the environment's, None if the task's verifier judges. The other finish
    reasons are "turns" and "context", when these are used up, and "error".

    With sampler.slice_tokens, `versions` are runs of (version, count) of the sampled tokens: the weights after so many
    steps sampled so many tokens. "cut": the rest is sampled in later slices; no such completion is trained on.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    finish_reason: Finish = "stop"
    turns: tuple[Turn, ...] = ()
    verdict: Verdict | None = None
    versions: tuple[tuple[int, int], ...] = ()

    @property
    def sampled_ids(self) -> tuple[int, ...]:
        """The token ids that the model sampled, without those of replies. Their number is the completion's length."""
        if not self.turns:
            return self.token_ids
        return tuple(token for token, own in zip(self.token_ids, self.train_mask(), strict=True) if own)

    @property
    def cut_off(self) -> bool:
        """Whether a limit of tokens ended it."""
        return self.finish_reason in ("length", "context")

    def train_mask(self, *, mask_void: bool = False) -> list[bool]:
        """Return for each token id whether the model sampled it; with mask_void, void turns count as not sampled."""
        if not self.turns:
            return [True] * len(self.token_ids)
        return [turn.sampled and not (mask_void and turn.void) for turn in self.turns for _ in range(turn.length)]


class Status(StrEnum):
    """The outcome of a check. Only BAD_REFERENCE and ERROR have no score: the model is not to blame for them."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    PARTIAL = "partial"
    NO_ANSWER = "no_answer"
    UNPARSEABLE = "unparseable"
    LIMIT = "limit"
    TIMEOUT = "timeout"
    BAD_REFERENCE = "bad_reference"
    ERROR = "error"


UNSCORED = frozenset({Status.BAD_REFERENCE, Status.ERROR})


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verifier's verdict on one completion.

    `score` is None exactly for BAD_REFERENCE and ERROR. Such a rollout is left out of its group and counted as a
    failure of the verifier; it never scores 0. `extracted` is the answer that was read from the completion, `parts`
    the named parts of a combined reward, `seconds` the time that the check took.

    `steps` are process rewards: (end, score) of consecutive parts of the text, `end` in characters. The reward is the
    score plus those of the steps, whatever `algo.credit` is. For unbiased credit per step, a step's end and score may
    depend only on the text up to `end`.
    """

    status: Status
    score: float | None
    reason: str = ""
    extracted: str | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    steps: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        if type(self.status) is not Status:
            object.__setattr__(self, "status", Status(self.status))
        if (self.score is None) != (self.status in UNSCORED):
            raise ValueError(f"verdict {self.status} with score {self.score}; only bad_reference and error have none")
        if self.score is not None and not math.isfinite(self.score):
            raise ValueError(f"verdict {self.status} with score {self.score}; a score is a finite number")
        # json does not take the scalars of numpy and torch, and verdicts go into logs.
        if self.score is not None and type(self.score) is not float:
            object.__setattr__(self, "score", float(self.score))
        if self.parts and any(type(part) is not float for part in self.parts.values()):
            object.__setattr__(self, "parts", {str(name): float(part) for name, part in self.parts.items()})
        if self.extracted is not None and type(self.extracted) is not str:
            object.__setattr__(self, "extracted", str(self.extracted))
        if self.steps != ():
            object.__setattr__(self, "steps", _checked_steps(self.steps))

    @property
    def correct(self) -> bool:
        """Whether pass@k counts the completion. A shaped reward does not change this."""
        return self.status is Status.CORRECT

    @classmethod
    def of(cls, result: Any) -> Verdict:
        """Convert a verifier's result (bool, number or Verdict) to a Verdict.

        True and scores from 1 are correct, False and scores up to 0 incorrect, scores between partial. Raises TypeError
        for another type, ValueError for a number that is not finite.
        """
        if isinstance(result, Verdict):
            return result
        if isinstance(result, bool) or type(result).__name__ in ("bool_", "bool"):
            return correct() if result else incorrect()
        try:
            score = float(result) if not isinstance(result, str) else None
        except (TypeError, ValueError, RuntimeError):  # torch raises RuntimeError for a tensor of several numbers
            score = None
        except OverflowError:
            score = math.inf
        if score is None:
            found = "None (does it end without return?)" if result is None else f"a {type(result).__name__}"
            raise TypeError(f"the verifier returned {found}; expected bool, float or Verdict")
        if not math.isfinite(score):
            raise ValueError(f"the verifier returned {score}; expected a finite number")
        status = Status.CORRECT if score >= 1 else Status.INCORRECT if score <= 0 else Status.PARTIAL
        return cls(status, score)

    def with_seconds(self, seconds: float) -> Verdict:
        """Return the same verdict with its duration."""
        return replace(self, seconds=seconds)


def _checked_steps(steps: Sequence[Sequence[Any]]) -> tuple[tuple[int, float], ...]:
    """Return steps as plain numbers. Raises ValueError for one that is not (end, finite score)."""
    checked: list[tuple[int, float]] = []
    for step in steps:
        end, score = (int(step[0]), float(step[1])) if len(step) == 2 else (-1, math.nan)
        if end < (checked[-1][0] if checked else 0) or not math.isfinite(score):
            raise ValueError(f"step {step!r:.80} of a verdict; expected (end, finite score), ends in order")
        checked.append((end, score))
    return tuple(checked)


def correct(extracted: str | None = None, reason: str = "") -> Verdict:
    """Return a verdict of score 1: right."""
    return Verdict(Status.CORRECT, 1.0, reason, extracted)


def incorrect(reason: str = "", extracted: str | None = None) -> Verdict:
    """Return a verdict of score 0: wrong."""
    return Verdict(Status.INCORRECT, 0.0, reason, extracted)


def no_answer(reason: str = "no answer found") -> Verdict:
    """Return a verdict of score 0: the completion holds no answer."""
    return Verdict(Status.NO_ANSWER, 0.0, reason)


def unparseable(reason: str, extracted: str | None = None) -> Verdict:
    """Return a verdict of score 0: there is an answer, and it cannot be parsed."""
    return Verdict(Status.UNPARSEABLE, 0.0, reason, extracted)


def limit(reason: str, extracted: str | None = None) -> Verdict:
    """Return a verdict of score 0: the answer is too large to check (length, depth, number size, memory)."""
    return Verdict(Status.LIMIT, 0.0, reason, extracted)


def timeout(reason: str) -> Verdict:
    """Return a verdict of score 0: the check of this completion ran out of time."""
    return Verdict(Status.TIMEOUT, 0.0, reason)


def bad_reference(reason: str) -> Verdict:
    """Return a verdict without score: the reference cannot be read."""
    return Verdict(Status.BAD_REFERENCE, None, reason)


def error(reason: str) -> Verdict:
    """Return a verdict without score: the verifier failed."""
    return Verdict(Status.ERROR, None, reason)


class RunError(RuntimeError):
    """Unrecoverable error with a one-line message, printed without a traceback."""


@runtime_checkable
class Verifier(Protocol):
    """Anything that can be called with a problem and a completion's text; a plain function is one.

    It returns a Verdict, a bool or a finite number (see Verdict.of). Optional attributes: see rlvr.core.traits.
    """

    def __call__(self, problem: Problem, completion: str) -> Verdict | bool | float: ...


Pair = tuple[Problem, str]


# A rollout of several turns: a generator function of the problem and a random stream. `said = yield` waits for the
# model's turn, `said = yield reply` answers it and waits for the next. It returns a verdict, or None for the
# verifier to judge.
Environment = Callable[[Problem, Random], Generator[Reply | None, str, Verdict | None]]
PACK = "mixture/pack"  # the key of Problem.info that names a problem's pack in a mixture


@dataclass(frozen=True, slots=True)
class Task:
    """A task pack: problems to train on, held-out problems, and the verifier of both.

    `demonstrations`: (problem, completion) pairs for supervised fine-tuning, disjoint from train and test.
    `fingerprint`: a hash of the problems and the verifier's settings, made by rlvr.tasks.base; a run records it, and is
    not resumed with another one. `environment`: a rollout has several turns, and the completion of a demonstration is
    the list of the model's turns. `shares`: maps pack name (`Problem.info[PACK]`) to its fraction of drawn problems;
    they sum to 1. `whole_fingerprint`: fingerprint before problems were filtered out. A run prints `notes` (what was
    chosen for the verifier) and `split_notes` (how problems were divided into train and test) at its start.
    """

    name: str
    train: Sequence[Problem]
    test: Sequence[Problem]
    verifier: Verifier
    demonstrations: Sequence[tuple[Problem, str | Sequence[str]]] = ()
    fingerprint: str = ""
    environment: Environment | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    whole_fingerprint: str = ""
    notes: tuple[str, ...] = ()
    split_notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.verifier, str):
            raise TypeError(
                f"the verifier of task {self.name!r} is a name, {self.verifier!r}; expected a verifier "
                "(rlvr.core.registry.make_verifier returns one by its name)"
            )


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 keep the whole vocabulary."""

    max_new_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """One turn to sample: the token ids before it, the settings and the seed.

    drawn: how many tokens of the turn were sampled before; they are the last ones of the context. group: a name of the
    rows that may share what an engine has cached under older weights (sampler.in_flight keep); "": none may.
    """

    context: tuple[int, ...]
    sampling: Sampling
    seed: int
    drawn: int = 0
    group: str = ""

    @property
    def own_seed(self) -> int:
        """The seed for an engine that cannot go on in the stream of `seed` after the tokens drawn before."""
        return derive_seed(self.seed, "drawn", self.drawn) if self.drawn else self.seed


class Conversations(Protocol):
    """Rollouts of several turns as a sampler sees them: numbered rows. One thread calls the methods."""

    def asks(self, *, every: bool) -> Sequence[tuple[int, Ask]] | None:
        """Return (row, turn) for turns that can be sampled now, each once; None when all rollouts have ended.

        every: wait for the replies to all open rows first. Otherwise do not wait.
        """
        ...

    def add_turn(self, row: int, completion: Completion) -> None:
        """Take a sampled turn and start making the reply to it."""
        ...

    def on_reply(self, wake: Callable[[], None]) -> None:
        """From now on call `wake`, in any thread, when a reply was made."""
        ...


@dataclass(frozen=True, slots=True)
class Group:
    """The G completions of one problem. `verdicts` is empty until they are verified.

    Rewards come from `verdicts`. If these are shuffled (run.shuffle_rewards), `own_verdicts` holds the completions' own
    verdicts, and a score in `verdicts` includes the penalties of the completion that it was made for. kept: the group
    is trained on. Groups that dynamic sampling drops are still logged and monitored. round: of dynamic sampling, 0 for
    the step's first problems. occurrence: how often the problem comes earlier among its step's.
    """

    problem: Problem
    prompt_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
    verdicts: tuple[Verdict, ...] = ()
    kept: bool = True
    round: int = 0
    own_verdicts: tuple[Verdict, ...] = ()
    occurrence: int = 0

    @property
    def unshuffled_verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts of these completions, also if shuffled ones are rewarded."""
        return self.own_verdicts or self.verdicts


class Sampler(Protocol):
    """Samples completions. Subclass it and write `generate` and `load_weights`; the other methods have defaults.

    A completion depends on (weights, prompt, sampling, its seed) only, not on the rest of the call.
    """

    @abstractmethod
    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[Sequence[int]]
    ) -> list[list[Completion]]:
        """Return P lists of completions, in the order of the seeds.

        prompts: P lists of token ids. seeds: P lists with one integer for each completion; G may differ.
        """

    @abstractmethod
    def load_weights(self, policy: Any) -> None:
        """Sample from the policy's current weights from now on. Called after each step."""

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[Sequence[int]],
        on_group: Callable[[int, list[Completion]], None],
    ) -> list[list[Completion]]:
        """Like `generate`, but also call `on_group(p, completions)` once for each prompt that has seeds.

        By default all calls come at the end. Override it to make each call, in the calling thread, as soon as a
        prompt's completions are there: they are then verified while others are sampled. An exception of `on_group` ends
        sampling.
        """
        groups = self.generate(prompts, sampling, seeds)
        for p, (completions, wanted) in enumerate(zip(groups, seeds)):
            if wanted:
                on_group(p, completions)
        return groups

    def sample_rows(self, asks: Sequence[Ask], on_row: Callable[[int, Completion], None]) -> None:
        """Sample a completion for each ask, and call `on_row(place, completion)` for each in this thread.

        By default asks with the same settings are one call of `stream`. Override it to sample all together.
        """
        for sampling in dict.fromkeys(ask.sampling for ask in asks):
            places = [place for place, ask in enumerate(asks) if ask.sampling == sampling]
            prompts, seeds = [asks[place].context for place in places], [[asks[place].own_seed] for place in places]

            def pass_on(p: int, made: list[Completion], places: list[int] = places) -> None:
                on_row(places[p], made[0])

            self.stream(prompts, sampling, seeds, pass_on)

    def converse(self, rollouts: Conversations) -> None:
        """Sample the turns of rollouts until all have ended.

        By default in rounds, so that timing does not decide which rows are sampled together. Override it to sample a
        row's next turn as soon as its reply is there.
        """
        while turns := rollouts.asks(every=True):

            def pass_on(place: int, made: Completion, turns: Sequence[tuple[int, Ask]] = turns) -> None:
                rollouts.add_turn(turns[place][0], made)

            self.sample_rows([ask for _, ask in turns], pass_on)

    def sleep(self) -> None:
        """Free memory until the next `load_weights`. Called between sampling and training. Default: nothing."""

    def measures(self) -> dict[str, float]:
        """Return metrics of the last `load_weights`, which the next step logs. Default: none."""
        return {}

    def interrupt(self) -> None:
        """End a `generate` or `stream` in another thread. It and all later calls raise. Default: nothing."""
        return

    def close(self) -> None:
        """Free what the sampler holds (an engine, a server). Default: nothing."""
        return

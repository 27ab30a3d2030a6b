"""Rollouts with an environment: turns of the model and replies to them, until a verdict or a limit ends them.

Sampled ids are never encoded again: the context of a turn is the prompt's ids, followed by sampled ids and encoded
replies alternately. Replies are made in threads while other rows are sampled. The sampler decides when: in rounds, or
each row as soon as its reply is there (rlvr.core.types.Sampler.converse). The result is the same.
"""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from random import Random
from typing import Any, Generic, Protocol, TypeVar

from rlvr.config import RolloutConfig
from rlvr.config.shared import TurnSettings
from rlvr.core.heartbeat import beat
from rlvr.core.seeding import derive_seed
from rlvr.core.types import (
    Ask,
    Completion,
    Environment,
    Finish,
    Problem,
    Prompt,
    Reply,
    RunError,
    Sampler,
    Sampling,
    Task,
    Turn,
    Verdict,
    error,
)

from .cuts import Runs

T = TypeVar("T")
AT_ONCE = 128
LONGEST_WAIT = 3600.0  # seconds; a lock takes no infinity


class Overdue(Exception):
    """A call took longer than its time limit; what it returns later is dropped."""


@dataclass(eq=False)
class Call(Generic[T]):
    """A call of `work`, known to the caller by its key. late: called in the same thread if `work` returned too late."""

    key: int
    work: Callable[[], T]
    late: Callable[[], None]
    deadline: float = math.inf

    def __lt__(self, other: Call[T]) -> bool:
        return self.key < other.key


class Background(Generic[T]):
    """Runs calls, each in a daemon thread, `at_once` at a time, and hands their outcomes to one consumer thread.

    The call of the lowest key begins first. seconds: time limit of a call, from its beginning. A call that exceeds it
    has the outcome Overdue, and no longer counts; the process does not wait for its thread at exit. untaken: no call
    begins while running calls and uncollected outcomes are so many. `wake` is called, in any thread, when there is an
    outcome; only `collect` notices overdue calls.
    """

    def __init__(self, seconds: float, at_once: int = AT_ONCE, *, untaken: float = math.inf) -> None:
        self.seconds, self.at_once, self.untaken = seconds, at_once, max(untaken, at_once)
        self.wake: Callable[[], None] = lambda: None
        self._changed = threading.Condition()
        self._notified = False
        self._waiting: list[Call[T]] = []  # a heap
        self._running: set[Call[T]] = set()
        self._finished: list[tuple[int, T | BaseException]] = []
        self._closed = False

    def submit(self, key: int, work: Callable[[], T], late: Callable[[], None] = lambda: None) -> None:
        """Run `work` in a thread; `collect` returns its outcome with the key."""
        with self._changed:
            if key < 0 or not self._closed:
                heapq.heappush(self._waiting, Call(key, work, late))
            self._start()

    def notify(self) -> None:
        """Make a waiting `collect` return. Any thread may call this."""
        with self._changed:
            self._notified = True
            self._changed.notify_all()

    def collect(self, wait: float) -> list[tuple[int, T | BaseException]]:
        """Return the outcomes since the last call by key: what a call returned or raised, or Overdue.

        wait: the most seconds to wait until there is one; `notify` ends the wait.
        """
        end = time.monotonic() + wait
        with self._changed:
            while True:
                for call in [call for call in self._running if call.deadline <= time.monotonic()]:
                    self._finish(call, Overdue())
                left = min([end, *(call.deadline for call in self._running)]) - time.monotonic()
                if self._finished or self._notified or time.monotonic() >= end:
                    found, self._finished, self._notified = self._finished, [], False
                    self._start()
                    return found
                self._changed.wait(min(max(0.0, left), LONGEST_WAIT))

    def close(self) -> None:
        """Begin no more calls, except those of negative keys, which clean up. What calls return is dropped."""
        with self._changed:
            self._closed = True
            self._waiting = [call for call in self._waiting if call.key < 0]

    def _start(self) -> None:
        """Begin the calls that wait, as far as there is room."""
        while (
            self._waiting
            and len(self._running) < self.at_once
            and len(self._running) + len(self._finished) < self.untaken
        ):
            call = heapq.heappop(self._waiting)
            call.deadline = time.monotonic() + self.seconds
            self._running.add(call)
            threading.Thread(target=self._work, args=(call,), name="rlvr-replies", daemon=True).start()

    def _work(self, call: Call[T]) -> None:
        outcome: Any
        try:
            outcome = call.work()
        except BaseException as error:  # for the consumer; a thread has nobody to raise it to
            outcome = error
        with self._changed:
            late = call.deadline <= time.monotonic()
            if call in self._running:
                self._finish(call, Overdue() if late else outcome)
        if late:
            call.late()

    def _finish(self, call: Call[T], outcome: T | BaseException) -> None:
        """Hand over the outcome of a running call, and begin another one."""
        self._running.discard(call)
        if not self._closed:
            self._finished.append((call.key, outcome))
            self.wake()
        self._start()
        self._changed.notify_all()


Join = Callable[[Completion, Completion, Sampling], Completion]
Seed = tuple[int | str, ...]
SHOWN = 300  # characters of an exception in a reason


class TurnPolicy(Protocol):
    """The part of a policy that rollouts with an environment use."""

    @property
    def eos_ids(self) -> frozenset[int]: ...

    def render(self, prompt: Prompt) -> list[int]: ...

    def encode_reply(self, reply: Reply, *, ended: int | None) -> list[int]: ...

    def add_marks(self, ids: Sequence[int], text: str, marks: Sequence[str]) -> str: ...

    def shorten_reply(self, text: str, tokens: int, payload: Sequence[tuple[int, int]] = ()) -> str: ...

    def check_turns(self) -> None: ...


@dataclass(frozen=True)
class TurnPlan:
    """An environment and the limits of its rollouts. context: tokens of a row, prompt included; None: no limit."""

    environment: Environment
    limits: TurnSettings
    context: int | None = None


def plan_of(policy: TurnPolicy, task: Task, limits: TurnSettings, *contexts: int | None) -> TurnPlan | None:
    """Return how a task's rollouts are played; None without an environment. contexts: the most tokens of each engine.

    Raises ValueError for a chat template that changes earlier turns.
    """
    if task.environment is None:
        return None
    policy.check_turns()
    known = [tokens for tokens in (*contexts, limits.context_tokens) if tokens]
    return TurnPlan(task.environment, limits, min(known, default=None))


def longest_row(task: Task, config: RolloutConfig, prompt: int, context: int | None) -> int:
    """Return the most tokens that a row to train on may have, after a prompt of so many tokens."""
    if task.environment is None:
        return prompt + config.max_new_tokens
    return config.longest_row(prompt, config.max_new_tokens, context)


@dataclass(frozen=True, slots=True)
class Ended:
    """The environment has returned: its verdict, or None."""

    verdict: Verdict | None


Step = Reply | Ended


@dataclass(slots=True, eq=False)
class Episode:
    """A rollout under way. seed: what all its random numbers are derived from."""

    problem: Problem
    prompt: tuple[int, ...]
    seed: Seed
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    spent: int = 0
    last: Completion | None = None
    """The model's last turn, as it was sampled."""
    left: float = math.inf
    """How many tokens it may sample before it is cut."""
    begun: int = 0
    """How many of the ids are those of a turn that was cut."""
    versions: Runs = ()
    world: Generator[Reply | None, str, Verdict | None] | None = None

    @property
    def number(self) -> int:
        """The number of turns of the model so far."""
        return sum(turn.sampled for turn in self.turns)


def play(
    policy: TurnPolicy,
    sampler: Sampler,
    problems: Sequence[Problem],
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[Sequence[Seed]],
    sampling: Sampling,
    plan: TurnPlan,
    on_group: Callable[[int, list[Completion]], None] = lambda place, made: None,
) -> list[list[Completion]]:
    """Return for each problem a completion with its turns for each of its seeds.

    sampling: of a rollout; all its turns share max_new_tokens. The first turn is drawn with the seed
    derive_seed(*seed), as without an environment. `on_group(place, completions)` gets a problem's rollouts once all
    have ended. Raises RunError if the environment does, which means that it can play no rollout.
    """
    made: list[list[Completion | None]] = [[None] * len(row) for row in seeds]
    missing = [len(row) for row in seeds]
    places = [(p, g) for p, row in enumerate(seeds) for g in range(len(row))]

    def keep_rollout(row: int, completion: Completion) -> None:
        p, g = places[row]
        made[p][g] = completion
        missing[p] -= 1
        if not missing[p]:
            on_group(p, [completion for completion in made[p] if completion is not None])

    episodes = [Episode(problems[p], tuple(prompts[p]), tuple(seeds[p][g])) for p, g in places]
    with Episodes(policy, episodes, sampling, plan, keep_rollout) as running:
        sampler.converse(running)
    return [[completion for completion in row if completion is not None] for row in made]


class Episodes:
    """Rollouts while they are sampled: the Conversations of Sampler.converse. A context manager.

    join: adds what was sampled to a turn that was cut (rlvr.training.rollout.cuts.join). With it a rollout is cut once
    it has sampled the tokens that are `left` to it: `on_done` gets it with the finish reason "cut", and its turns so
    far; its Episode can go on.
    """

    def __init__(
        self,
        policy: TurnPolicy,
        episodes: Sequence[Episode],
        sampling: Sampling,
        plan: TurnPlan,
        on_done: Callable[[int, Completion], None],
        join: Join | None = None,
    ) -> None:
        self.policy, self.episodes, self.sampling, self.plan, self.on_done = policy, episodes, sampling, plan, on_done
        self.join = join
        self.background: Background[Step] = Background(plan.limits.reply_seconds)
        self.ready = [(row, self._ask(episode)) for row, episode in enumerate(episodes)]
        self.open = len(episodes)
        self.waiting = 0  # open rows whose reply is being made

    def __enter__(self) -> Episodes:
        return self

    def __exit__(self, *_: object) -> None:
        """Drop the replies that are still being made, and close the environments, in threads that nobody waits for."""
        self.background.close()

    def on_reply(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when a reply was made; see rlvr.core.types.Conversations."""
        self.background.wake = wake

    def asks(self, *, every: bool) -> list[tuple[int, Ask]] | None:
        """Return the turns to sample next, by row; see rlvr.core.types.Conversations. Raises RunError as `play`."""
        while self.waiting and every:
            self._collect(wait=math.inf)
        self._collect(wait=0)
        found = sorted(self.ready, key=lambda item: item[0])
        self.ready = []
        return found if self.open else None

    def add_turn(self, row: int, completion: Completion) -> None:
        """Take a turn of the model, and have the environment answer it."""
        beat()
        episode = self.episodes[row]
        if self.join is not None:
            completion = self._join(episode, completion, self.join)
        episode.last = completion
        episode.ids += completion.token_ids
        episode.logprobs += completion.logprobs
        episode.spent += len(completion.token_ids)
        if completion.finish_reason == "cut":
            episode.begun = len(completion.token_ids)
            self._pause(row)
            return
        marks = getattr(self.plan.environment, "marks", ())
        said = self.policy.add_marks(completion.token_ids, completion.text, marks)
        episode.turns.append(Turn("assistant", said, len(completion.token_ids)))
        self.waiting += 1
        self.background.submit(row, partial(self._answer, episode, said), partial(close, episode))

    def drop(self, row: int) -> None:
        """Give up a rollout whose next turn cannot be sampled: it ends without being reported."""
        self.open -= 1
        self.background.submit(-1, partial(close, self.episodes[row]))

    def cut(self, row: int) -> bool:
        """End a rollout whose next turn does not fit the context any more; return False where it is the first turn."""
        if not self.episodes[row].turns:
            return False
        episode = self.episodes[row]
        while not episode.turns[-1].sampled:  # a completion ends with a turn of the model
            length = episode.turns.pop().length
            del episode.ids[len(episode.ids) - length :], episode.logprobs[len(episode.logprobs) - length :]
        self.background.submit(-1, partial(close, episode))
        self._finish(row, "context", None)
        return True

    def _collect(self, wait: float) -> None:
        for row, outcome in self.background.collect(wait):
            if row < 0:  # an environment that was closed
                continue
            beat()
            self.waiting -= 1
            self._follow(row, self.episodes[row], outcome)

    def _follow(self, row: int, episode: Episode, outcome: Step | BaseException) -> None:
        """Go on with a rollout after what its environment did: the next turn, or the end."""
        if isinstance(outcome, RunError):
            raise outcome
        if isinstance(outcome, Overdue):
            reason = f"the environment gave no reply within {self.plan.limits.reply_seconds:g} s"
            self._finish(row, "error", error(reason))
        elif isinstance(outcome, BaseException):
            self._finish(row, "error", error(f"the environment raised {describe_error(outcome)}"))
        elif isinstance(outcome, Ended):
            unscored = outcome.verdict is not None and outcome.verdict.score is None
            self._finish(row, "error" if unscored else self._reason(episode), outcome.verdict)
        else:
            episode.turns[-1] = replace(episode.turns[-1], reward=float(outcome.reward), void=bool(outcome.void))
            if limit := self._limit(episode) or self._reply(episode, outcome):
                self.background.submit(-1, partial(close, episode))
                self._finish(row, limit, None)
            elif episode.left <= 0:
                self._pause(row)
            else:
                self.ready.append((row, self._ask(episode)))

    def _join(self, episode: Episode, part: Completion, join: Join) -> Completion:
        """Return the turn that a part goes on with, whole or cut, and take what it had from the episode."""
        start = len(episode.ids) - episode.begun
        row = Completion("", tuple(episode.ids[start:]), tuple(episode.logprobs[start:]), versions=episode.versions)
        most = self._turn_tokens(episode) + episode.begun
        turn = join(row, part, replace(self.sampling, max_new_tokens=most))
        del episode.ids[start:], episode.logprobs[start:]
        episode.left -= len(turn.token_ids) - episode.begun
        episode.versions = turn.versions
        episode.spent -= episode.begun
        episode.begun = 0
        return turn

    def _pause(self, row: int) -> None:
        """Hand over a rollout that is cut; its episode keeps what it has."""
        self.open -= 1
        self.on_done(row, self._rollout(self.episodes[row], "cut", None))

    def _answer(self, episode: Episode, said: str) -> Step:
        """Return what the environment does after a turn. One that was cut in another process plays its turns again."""
        if episode.world is None and len(episode.turns) > 1:
            self._replay(episode)
        return answer(self.plan.environment, episode, said)

    def _replay(self, episode: Episode) -> None:
        """Play all turns but the last again. Raises RunError where a reply is not the one that was recorded."""
        for turn, reply in zip(episode.turns[:-1:2], episode.turns[1::2]):
            step = answer(self.plan.environment, episode, turn.text)
            found = None
            if isinstance(step, Reply):
                text = self.policy.shorten_reply(step.text, self.plan.limits.reply_tokens, step.payload)
                found = Turn(step.role, text, reply.length, calls=step.calls, failed=step.failed)
            if found != reply:
                shown = "the end of the rollout" if found is None else repr(found.text[:SHOWN])
                raise RunError(
                    f"the environment replied {shown} to turns of problem {episode.problem.id!r} that had the reply "
                    f"{reply.text[:SHOWN]!r} before: a run in slices is resumed only if replies follow from the turns "
                    "and the environment's random stream; leave out --sampler.slice-tokens"
                )

    def _reason(self, episode: Episode) -> Finish:
        """Return why a rollout ended whose environment has returned: the reason why its last turn ended."""
        assert episode.last is not None
        if not episode.last.cut_off:
            return episode.last.finish_reason
        return "context" if self._room(episode) <= 0 < self._budget(episode) else "length"

    def _limit(self, episode: Episode) -> Finish | None:
        """Return the limit that leaves no further turn."""
        if self._budget(episode) <= 0:
            return "length"
        if self._room(episode) <= 0:
            return "context"
        return "turns" if episode.number >= self.plan.limits.max_turns else None

    def _reply(self, episode: Episode, reply: Reply) -> Finish | None:
        """Append a reply. Return "context", and leave it out, where no token of a turn would fit after it."""
        assert episode.last is not None
        text = self.policy.shorten_reply(reply.text, self.plan.limits.reply_tokens, reply.payload)
        ended = next((last for last in episode.last.token_ids[-1:] if last in self.policy.eos_ids), None)
        ids = self.policy.encode_reply(replace(reply, text=text), ended=ended)
        if self._room(episode) <= len(ids):
            return "context"
        episode.ids += ids
        episode.logprobs += [0.0] * len(ids)
        episode.turns.append(Turn(reply.role, text, len(ids), calls=reply.calls, failed=reply.failed))
        return None

    def _budget(self, episode: Episode) -> int:
        return self.sampling.max_new_tokens - episode.spent

    def _room(self, episode: Episode) -> float:
        """Return the tokens that fit into the context."""
        return math.inf if self.plan.context is None else self.plan.context - len(episode.prompt) - len(episode.ids)

    def _ask(self, episode: Episode) -> Ask:
        """Return the next turn to sample. If it reaches the context's end that is a limit, and no error."""
        number = episode.number
        seed = derive_seed(*episode.seed, *(("turn", number) if number else ()))
        sampling = replace(self.sampling, max_new_tokens=int(min(self._turn_tokens(episode), episode.left)))
        context = (*episode.prompt, *episode.ids) if episode.ids else episode.prompt
        group = "" if self.join is None else str(derive_seed(*episode.seed))
        return Ask(context, sampling, seed, episode.begun, group)

    def _turn_tokens(self, episode: Episode) -> int:
        """Return how many further tokens the turn under way may have."""
        of_turn = (self.plan.limits.turn_tokens or math.inf) - episode.begun
        return int(min(self._budget(episode), of_turn, self._room(episode)))

    def _rollout(self, episode: Episode, reason: Finish, verdict: Verdict | None) -> Completion:
        """Return a rollout as it is now."""
        text = "" if reason == "cut" or episode.last is None else episode.last.text
        parts = tuple(episode.ids), tuple(episode.logprobs), reason, tuple(episode.turns), verdict, episode.versions
        return Completion(text, *parts)

    def _finish(self, row: int, reason: Finish, verdict: Verdict | None) -> None:
        episode = self.episodes[row]
        assert episode.last is not None
        completion = self._rollout(episode, reason, verdict)
        self.open -= 1
        # The callback takes over the rollout's memory.
        episode.ids, episode.logprobs, episode.turns, episode.last = [], [], [], None
        self.on_done(row, completion)


def answer(environment: Environment, episode: Episode, said: str) -> Step:
    """Return what the environment does after a turn. Raises what it raises, and what `check_reply` raises."""
    try:
        if episode.world is None:
            episode.world = environment(episode.problem, Random(derive_seed(*episode.seed, "environment")))
            opening = next(episode.world)
            if opening is not None:
                raise TypeError(f"it began with {opening!r:.80}; expected a bare `yield` first, which gives a turn")
        return check_reply(episode.world.send(said))
    except StopIteration as stop:
        return Ended(None if stop.value is None else Verdict.of(stop.value))


def collect_replies(
    demonstrations: Sequence[tuple[Problem, Sequence[str]]], plan: TurnPlan, seed: int
) -> list[Sequence[Reply]]:
    """Return what the environment replies to each turn of demonstrations but the last.

    Raises RunError, which names the demonstration, if the environment fails or ends before the last turn.
    """
    background: Background[Sequence[Reply]] = Background(plan.limits.reply_seconds)
    found: dict[int, Sequence[Reply]] = {}
    for number, (problem, turns) in enumerate(demonstrations):
        background.submit(number, partial(replay, plan.environment, problem, turns, seed))
    try:
        while len(found) < len(demonstrations):
            for number, outcome in background.collect(math.inf):
                if isinstance(outcome, BaseException):
                    name = demonstrations[number][0].id
                    late = f"TimeoutError: no reply within {plan.limits.reply_seconds:g} s"
                    text = late if isinstance(outcome, Overdue) else describe_error(outcome)
                    raise RunError(f"demonstration {name!r}: {text}") from outcome
                found[number] = outcome
    finally:
        background.close()
    return [found[number] for number in range(len(demonstrations))]


def replay(environment: Environment, problem: Problem, turns: Sequence[str], seed: int) -> Sequence[Reply]:
    """Return the replies to all turns but the last. Raises RunError where the environment ends before."""
    episode = Episode(problem, (), (seed, "demonstration", problem.id))
    made: list[Reply] = []
    try:
        for said in turns[:-1]:
            step = answer(environment, episode, said)
            if isinstance(step, Ended):
                reason = f": {step.verdict.status}, {step.verdict.reason}" if step.verdict else ""
                raise RunError(f"the environment ends after turn {len(made) + 1} of {len(turns)}{reason}")
            made.append(step)
    finally:
        close(episode)
    return made


def check_reply(reply: Any) -> Reply:
    """Return what an environment yielded, text without lone surrogates. Raise TypeError or ValueError for no Reply."""
    if not isinstance(reply, Reply):
        raise TypeError(f"it yielded {reply!r:.80}; expected a Reply")
    if not isinstance(reply.text, str) or not isinstance(reply.role, str):
        raise TypeError(f"it yielded a Reply with text {reply.text!r:.80} and role {reply.role!r:.80}; expected text")
    if reply.role == "assistant":
        raise ValueError("it yielded a Reply of role 'assistant', which is the model's")
    if not math.isfinite(reply.reward):
        raise ValueError(f"it yielded a Reply with reward {reply.reward}; expected a finite number")
    places = [0, *chain.from_iterable(reply.payload), len(reply.text)]
    if any(before > after for before, after in pairwise(places)):
        raise ValueError(f"it yielded a Reply with payload {reply.payload!r:.80}; expected parts of its text, in order")
    return replace(reply, text=reply.text.encode("utf-8", "replace").decode())


def close(episode: Episode) -> Any:
    """Close the environment of a rollout. What it raises is dropped: the rollout has ended."""
    try:
        if episode.world is not None:
            episode.world.close()
    except BaseException:
        pass


def describe_error(problem: BaseException) -> str:
    """Return an exception as its type and the first line of its text."""
    text = str(problem).strip().split("\n")[0][:SHOWN]
    return f"{type(problem).__name__}: {text}".rstrip(": ")

"""What the adapters share: a `Judge` gives verdicts to another program, a `Rollout` plays a pack's environment for it.

Also reads what other programs pass: chat messages with their thinking, and references as data sets store them.
"""

from __future__ import annotations

import importlib
import random
import threading
import uuid
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlvr.core import after_fork
from rlvr.core.registry import make_task, make_verifier
from rlvr.core.seeding import derive_seed
from rlvr.core.traits import VerifierTraits
from rlvr.core.types import Environment, Pair, Problem, Prompt, Reply, Verdict, Verifier
from rlvr.verifiers.runner import Runner
from rlvr.verifiers.runner.base import call_guarded, log_failure

# Fields of a message that hold its thinking apart from its content.
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")


def messages(prompt: Prompt) -> list[dict[str, str]]:
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [{"role": message["role"], "content": message["content"]} for message in prompt]


def read_prompt(prompt: Any) -> Prompt:
    """Return a prompt of another program: a text, or messages with role and the text of their content."""
    given = to_plain(prompt)
    if isinstance(given, str):
        return given
    if not isinstance(given, list | tuple) or not all(isinstance(one, Mapping) and "role" in one for one in given):
        raise TypeError(f"a prompt is {given!r:.80}; expected a text or chat messages")
    return [{"role": one["role"], "content": _parts(one.get("content"))[0]} for one in given]


def completion_text(completion: Any) -> str:
    """Return what the model said: the text, or that of the last message of the assistant, thinking included.

    Content is a text, null, or a list of parts, of which those of text count. Thinking in a field of the message, or in
    parts of it, is put back between its tags. Raises TypeError for anything else.
    """
    if isinstance(completion, str):
        return completion
    given = [completion] if isinstance(completion, Mapping) else completion
    if not isinstance(given, Sequence) or not all(isinstance(message, Mapping) for message in given):
        raise TypeError(f"a completion is {completion!r:.80}; expected a text, a chat message or a list of them")
    spoken = [message for message in given if message.get("role") == "assistant"]
    if not spoken:
        return ""
    last = spoken[-1]
    thought = next((last[name] for name in _THOUGHTS if isinstance(last.get(name), str)), "")
    text, parts = _parts(last.get("content"))
    return with_thinking(text, thought or parts)


def with_thinking(text: str, thought: str | None) -> str:
    """Put the thinking between its tags before a text. If the text is empty, the tag is not closed."""
    if not thought or not thought.strip():
        return text
    opened = f"<think>\n{thought.strip()}\n"
    return f"{opened}</think>\n\n{text.lstrip()}" if text else opened


def to_plain(value: Any) -> Any:
    """Turn numpy's arrays, numbers and texts in a reference into Python's, at any depth.

    Parquet files and data frames give such values; verifiers read what JSON gives.
    """
    if isinstance(value, Mapping):
        return {to_plain(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(to_plain, value)) if type(value) in (list, tuple) else value
    if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        return to_plain(value.tolist())
    return value


def _parts(content: Any) -> tuple[str, str]:
    """Return the text of a message's content, and what was thought in it."""
    if content is None or isinstance(content, str):
        return content or "", ""
    if not isinstance(content, Sequence) or not all(isinstance(part, str | Mapping) for part in content):
        raise TypeError(f"the content of a message is {content!r:.80}; expected a text or a list of parts")
    texts, thoughts = [], []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif part.get("type", "text") in ("text", "output_text"):
            texts.append(str(part.get("text") or ""))
        elif part["type"] in ("thinking", "reasoning"):
            thoughts.append(str(part.get(part["type"]) or ""))
    return "".join(texts), "\n".join(filter(None, thoughts))


class Unscored(RuntimeError):
    """The verifier failed, or the reference cannot be read: there is no score, and 0 would be a wrong one."""


class Judge:
    """A verifier with its worker processes, started by the first verdict, and the problems of a pack by id.

    settings: workers, timeout (seconds of a verdict), error_budget (the share of verdicts without score above which
    verdicts raise VerifierErrors) of rlvr.verifiers.Runner. A judge can be pickled, forked, and called from several
    threads. A process that receives it several times has one copy, with its own workers. Close it, or use it as a
    context manager. Raises ValueError if two problems have one id, and for settings that the Runner refuses.
    """

    def __init__(
        self,
        verifier: Verifier,
        train: Iterable[Problem] = (),
        test: Iterable[Problem] = (),
        *,
        environment: Environment | None = None,
        **settings: Any,
    ) -> None:
        self.verifier = verifier
        self.environment = environment
        self.parts: Mapping[str, Sequence[Problem]] = {"train": list(train), "test": list(test)}
        self._problems: dict[str, Problem] = {}
        for problem in (problem for part in self.parts.values() for problem in part):
            if self._problems.setdefault(problem.id, problem) is not problem:
                raise ValueError(f"two problems have the id {problem.id!r}; expected unique ids")
        self._settings: dict[str, Any] = {"workers": 2, "timeout": 10.0, "error_budget": None, **settings}
        self._key = uuid.uuid4().hex
        self._lock = threading.Lock()
        # Made here so that wrong settings are refused at once; its workers start with the first verdict.
        self._runner: Runner | None = Runner(verifier, **self._settings)
        after_fork.register(self)

    def __reduce__(self) -> Any:
        state = {name: value for name, value in vars(self).items() if name not in ("_runner", "_lock")}
        return _receive, (type(self), self._key, state)

    def after_fork(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    @property
    def has_problems(self) -> bool:
        """Whether it has problems, which rows name by id. Otherwise rows bring references."""
        return bool(self._problems)

    @property
    def reads_prompt(self) -> bool:
        """Whether verdicts depend on the prompt."""
        return _has(self.verifier, "reads_prompt")

    def without_problems(self) -> Judge:
        return Judge(self.verifier, environment=self.environment, **self._settings)

    def refuse_whole_batches(self, program: str) -> None:
        """Raise ValueError for a verifier whose verdicts depend on a batch, where `program` asks for one at a time."""
        if _has(self.verifier, "whole_batch"):
            raise ValueError(
                f"{program} asks for one verdict at a time, and those of this verifier depend on the whole batch "
                "(whole_batch; of combine: whiten); use a verifier that judges each completion by itself"
            )

    def part(self, name: str) -> Sequence[Problem]:
        """Return the problems of a part, train or test. Raise ValueError where there are none."""
        if not self.parts.get(name):
            raise ValueError(f"no problems in the part {name!r}; expected train or test of a judge with a task")
        return self.parts[name]

    def problem(self, key: Any, prompt: Any = "", reference: Any = None) -> Problem:
        """Return the pack's problem with this id. Without an id or a pack, make one of the prompt and the reference.

        Raises LookupError for an id that the pack does not have, and if neither an id nor a reference can be used.
        """
        if self.has_problems and key is not None:
            if key not in self._problems:
                raise LookupError(f"no problem {key!r:.80} in this pack; were its rows made with other options?")
            return self._problems[key]
        if self.has_problems and reference is None:
            raise LookupError("a row without the id of a problem of this pack, and without reference")
        if key is not None and reference is None:
            raise LookupError(
                f"no problem {key!r:.80} in this pack: it is a verifier alone, which needs references; "
                "judge(task=...) has problems"
            )
        return Problem("", read_prompt(prompt), to_plain(reference))

    def verdicts(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Return the verdict of each (problem, completion), in order."""
        with self._lock:
            if self._runner is None:
                self._runner = Runner(self.verifier, **self._settings)
        return self._runner.verify(pairs)

    def scores(self, pairs: Sequence[Pair]) -> list[float | None]:
        """Return the rewards (see `reward_of`), None for a verdict without score."""
        return [reward_of(verdict) for verdict in self.verdicts(pairs)]

    def verdict(self, problem: Problem, completion: str) -> Verdict:
        return self.verdicts([(problem, completion)])[0]

    def score(self, problem: Problem, completion: str) -> float:
        """Return the reward of one completion. Raises Unscored if there is no score."""
        return score_of(self.verdict(problem, completion))

    def close(self) -> None:
        """End the worker processes. A later verdict starts new ones."""
        with self._lock:
            runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def reward_of(verdict: Verdict) -> float | None:
    """Return the score plus the process rewards of its steps, None without a score."""
    return None if verdict.score is None else verdict.score + sum(score for _, score in verdict.steps)


def score_of(verdict: Verdict) -> float:
    """Return the reward of a verdict. Raises Unscored if there is no score."""
    reward = reward_of(verdict)
    if reward is None:
        raise Unscored(f"{verdict.status}: {verdict.reason}")
    return reward


def judge(
    verifier: str | None = None,
    *,
    task: str | None = None,
    workers: int = 0,
    timeout: float = 10.0,
    error_budget: float | None = None,
    **options: Any,
) -> Judge:
    """Return a judge of a verifier, or of a task pack's problems. options: of the verifier, or of the pack.

    workers, timeout, error_budget: see Judge. Raises ValueError unless exactly one is named, LookupError for an unknown
    name or option.
    """
    settings: dict[str, Any] = {"workers": workers, "timeout": timeout, "error_budget": error_budget}
    if (verifier is None) == (task is None):
        raise ValueError("judge(verifier) or judge(task=...): expected one of them")
    if verifier is not None:
        return Judge(make_verifier(verifier, **options), **settings)
    pack = make_task(str(task), **options)
    return Judge(pack.verifier, pack.train, pack.test, environment=pack.environment, **settings)


def judge_of_one_turn(name: str, program: str, **options: Any) -> Judge:
    """Return a judge of a pack for a program that plays one turn, and asks for one verdict at a time.

    options: of `judge`. Raises ValueError for a pack with an environment, and for a verifier of whole batches.
    """
    pack = judge(task=name, **options)
    if pack.environment is not None:
        raise ValueError(f"task {name!r} is played in turns; this adapter has one turn")
    pack.refuse_whole_batches(program)
    return pack


def import_program(module: str, package: str) -> Any:
    """Import a module of another program. Raises ValueError, which names the package, if it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(f"this needs the package {package}: pip install {package.split(',')[0]} ({error})") from error


def _has(verifier: Any, trait: str) -> bool:
    traits = VerifierTraits.of(verifier)
    return getattr(traits, trait) or any(_has(part, trait) for part in traits.components.values())


MOST_RECEIVED = 8
_judges: dict[str, Judge] = {}  # the copies that were sent to this process, the latest last


def _receive(kind: type[Judge], key: str, state: dict[str, Any]) -> Judge:
    """Return this process's copy of a judge that was pickled."""
    copied = _judges.pop(key, None)
    if copied is None:
        copied = kind.__new__(kind)
        vars(copied).update(state, _runner=None, _lock=threading.Lock())
        after_fork.register(copied)
    _judges[key] = copied
    while len(_judges) > MOST_RECEIVED:
        _judges.pop(next(iter(_judges)))
    return copied


class Rollout:
    """One rollout of a problem in the environment of its pack, or of a single turn if the pack has none.

    seed: of the environment's random numbers. An exception of the environment ends the rollout with a verdict of status
    error, which has no score.
    """

    def __init__(self, pack: Judge, problem: Problem, *seed: int | str) -> None:
        self.pack, self.problem = pack, problem
        self.verdict: Verdict | None = None
        self.earned = 0.0
        """The rewards of the turns so far."""
        self.said = ""
        self._seed = seed
        self._turns: Generator[Reply | None, str, Any] | None = None

    def set_prompt(self, prompt: Any) -> None:
        """Set the prompt of a problem that was made from a reference, before the first turn."""
        self.problem = replace(self.problem, prompt=read_prompt(prompt))

    def say(self, text: str) -> Reply | Verdict:
        """Take a turn of the model. Return the reply to it, or the verdict once the rollout has ended."""
        if self.verdict is not None:
            return self.verdict
        self.said = text
        if self.pack.environment is None:
            return self.end()
        found, failure = call_guarded(self.pack.environment, lambda: self._reply(text))
        if failure is not None:
            log_failure(failure)
        if isinstance(found, Reply):
            self.earned += found.reward
            return found
        return self.end(found)

    def end(self, verdict: Verdict | None = None) -> Verdict:
        """End the rollout with this verdict; without one the pack's verifier judges what was said last."""
        self.verdict = verdict or self.judge()
        self.close()
        return self.verdict

    def judge(self) -> Verdict:
        """Return the verdict. A rollout that has not ended goes on; what was said last is judged."""
        return self.pack.verdict(self.problem, self.said) if self.verdict is None else self.verdict

    def close(self) -> None:
        """End the environment. An exception is only logged, since the rollout has ended."""
        turns, self._turns = self._turns, None
        if turns is not None:
            _, failure = call_guarded(self.pack.environment, lambda: turns.close())
            if failure is not None:
                log_failure(failure)

    def _reply(self, text: str) -> Reply | Verdict | None:
        """Return the environment's reply, or its verdict; None where it leaves that to the verifier."""
        assert self.pack.environment is not None
        try:
            if self._turns is None:
                self._turns = self.pack.environment(
                    self.problem, random.Random(derive_seed(*self._seed, self.problem.id))
                )
                if (opening := next(self._turns)) is not None:
                    raise TypeError(f"it began with {opening!r:.80}; expected a bare `yield` first, which gives a turn")
            reply = self._turns.send(text)
        except StopIteration as ended:
            return None if ended.value is None else Verdict.of(ended.value)
        if not isinstance(reply, Reply) or not isinstance(reply.text, str):
            raise TypeError(f"it yielded {reply!r:.80}; expected a Reply")
        return reply

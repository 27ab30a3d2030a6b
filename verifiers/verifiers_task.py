"""The verifier `verifiers_task`: rewards of tasks of the package `verifiers` 0.4 (Prime Intellect, prime-rl).

`import verifiers.v1` here means that package. The folder of the same name in a checkout of rlvr is skipped.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from rlvr.core.registry import register
from rlvr.core.types import Message, Problem, Prompt, Status, Verdict, bad_reference

from .extract.sections import BYTE_ORDER_MARK, THINKING, after_thinking

MISSING = "this needs the package verifiers, version 0.4: pip install -e '.[verifiers]'"


@cache
def v1() -> Any:
    """Return the module verifiers.v1. Raise ValueError if it is not installed or has another version."""
    full_path = list(sys.path)
    loaded = sys.modules.get("verifiers")
    if loaded is not None and not hasattr(loaded, "v1") and _is_ours(Path(loaded.__file__ or "").parent):
        del sys.modules["verifiers"]
    sys.path[:] = [path for path in full_path if not _is_ours(Path(path or ".") / "verifiers")]
    try:
        importlib.import_module("verifiers")
        return importlib.import_module("verifiers.v1")
    except ModuleNotFoundError as error:
        raise ValueError(f"{MISSING} ({error})") from error
    finally:
        sys.path[:] = full_path


def _is_ours(folder: Path) -> bool:
    """Whether a folder is this one, in a checkout of rlvr."""
    return (folder / "runner" / "blame.py").exists()


def load_tasks(module: str, config: Mapping[str, Any], most: int) -> list[Any]:
    """Return the first `most` tasks of the taskset that `module` exports. Raise ValueError for one that cannot be used.

    Rewards are computed from the completion only. So tasks are refused that need a container, tool servers, judges, or
    a runtime for their rewards or before them.
    """
    vf = v1()
    try:
        kind = vf.taskset_config_type(module)
        made = vf.load_taskset(kind(id=module, **config))
    except (ModuleNotFoundError, TypeError, AttributeError) as error:
        raise LookupError(f"verifiers:{module}: {error}") from error
    tasks = list(made.take(most))
    if not tasks:
        raise ValueError(f"verifiers:{module} has no tasks")
    for task in {type(task): task for task in tasks}.values():
        if reason := _needs_more(task, made):
            raise ValueError(f"verifiers:{module} is refused: it needs {reason}")
    return tasks


def _needs_more(task: Any, made: Any) -> str:
    if task.NEEDS_CONTAINER:
        return "a container"
    if type(task).toolsets(task.config) or type(made).toolsets(made.config):
        return "tool servers"
    if task.config.judges:
        return "judges"
    for hook in task.hooks("reward"):
        runtime = inspect.signature(hook).parameters.get("runtime")
        if runtime is not None and runtime.default is inspect.Parameter.empty:
            return f"a runtime for its reward {hook.__name__}"
    for name in ("setup", "stage_verifier", "finalize"):
        if getattr(type(task), name) is not getattr(v1().Task, name):
            return f"a runtime for its {name}"
    return "" if task.hooks("reward") else "a reward"


def prompt_of(task: Any) -> Prompt:
    """Return the prompt of a task: text, or messages if there is a system prompt or more than one message."""
    data = task.data
    if data.prompt is None:
        raise ValueError("a task without a prompt: the user opens the conversation, which takes turns")
    system: list[Message] = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    if isinstance(data.prompt, str):
        return [*system, {"role": "user", "content": data.prompt}] if system else data.prompt
    rest = [{"role": message.role, "content": _text(message.content)} for message in data.prompt]
    return [*system, *rest]


def _text(content: Any) -> str:
    if not isinstance(content, str):
        raise ValueError("a prompt with images or other parts; only text is read")
    return content


def hash_of(task: Any) -> str:
    """Return a hash of a task's data, without its place in the taskset."""
    return str(task.with_data(idx=None).hash)


def trace_of(task: Any, completion: str) -> Any:
    """Return the package's trace of a model that answered the task's prompt with this completion.

    The thinking before the answer becomes `reasoning_content`, as the servers of prime-rl return it.
    """
    vf = v1()
    content = after_thinking(completion)
    answer, thought = ("", completion) if content is None else (content, completion.removesuffix(content))
    reasoning = thought.strip(BYTE_ORDER_MARK).strip()
    for tag in THINKING:
        reasoning = reasoning.removeprefix(tag).removesuffix(tag)
    records = importlib.import_module("verifiers.v1.trace")
    node = importlib.import_module("verifiers.v1.graph").MessageNode
    return vf.Trace(
        task=records.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        agent=records.AgentInfo(config=vf.AgentConfig()),
        nodes=[
            node(message=vf.UserMessage(content=task.data.prompt_text)),
            node(
                parent=0,
                message=vf.AssistantMessage(content=answer, reasoning_content=reasoning.strip() or None),
                sampled=True,
            ),
        ],
    )


def rewards_of(task: Any, completion: str) -> dict[str, tuple[float, float]]:
    """Return {name: (reward, weight)} for a completion. Exceptions of a reward pass through."""
    trace = trace_of(task, completion)
    asyncio.run(task.score(trace))
    if missing := [name for name, reward in trace.rewards.items() if reward is None]:
        raise RuntimeError(f"the rewards {', '.join(missing)} were not computed")
    return {name: (reward.score, reward.weight) for name, reward in trace.rewards.items()}


@lru_cache(maxsize=4)
def _tasks(module: str, config: str, most: int) -> dict[str, Any]:
    """Return the tasks of a taskset by their hash, since some tasksets shuffle them each time."""
    return {hash_of(task): task for task in load_tasks(module, json.loads(config), most)}


@register("verifiers_task")
@dataclass(frozen=True, kw_only=True)
class VerifiersTask:
    """The weighted sum of the rewards that a task of the package `verifiers` gives a completion.

    The reference is {"taskset": module, "config": its settings, "most": how many tasks are read, "hash": the hash of
    the task's data}. A sum of at least `full` is correct and scores 1; smaller sums are divided by `full`. The rewards
    are code of the taskset. It runs in a worker process, not in the sandbox, and sees thinking and answer separately.
    """

    full: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.full) and self.full > 0):
            raise ValueError(f"verifier 'verifiers_task', full {self.full}: expected a number above 0")

    def warm_up(self) -> None:
        """Import the package."""
        v1()

    def check_reference(self, reference: Any) -> None:
        """Raise ValueError for a reference of another form."""
        if not isinstance(reference, Mapping) or not {"taskset", "config", "most", "hash"} <= set(reference):
            raise ValueError('the reference is not {"taskset": ..., "config": ..., "most": ..., "hash": ...}')

    def __call__(self, problem: Problem, completion: str) -> Verdict:
        """Return the verdict on one completion. Exceptions of a reward pass through: an error without a score."""
        try:
            self.check_reference(problem.reference)
            wanted = problem.reference
            tasks = _tasks(wanted["taskset"], json.dumps(wanted["config"]), wanted["most"])
        except (ValueError, LookupError) as error:
            return bad_reference(str(error))
        task = tasks.get(wanted["hash"])
        if task is None:
            return bad_reference(f"verifiers:{wanted['taskset']} has other tasks than when its problems were made")
        rewards = rewards_of(task, completion)
        total = sum(score * weight for score, weight in rewards.values()) / self.full
        status = Status.CORRECT if total >= 1 else Status.INCORRECT if total <= 0 else Status.PARTIAL
        return Verdict(status, min(total, 1.0), ", ".join(f"{name} {score:g}" for name, (score, _) in rewards.items()))

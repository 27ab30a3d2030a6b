"""Task packs as tasksets of `verifiers` 0.4 (Prime Intellect, prime-rl).

    # sums_env.py
    from rlvr.adapters.verifiers import taskset
    Sums = taskset("arithmetic", num_test=100)
    __all__ = ["Sums"]

The other way, its tasksets as task packs: rlvr.verifiers.verifiers_task and rlvr.tasks.libraries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Any

from rlvr.core.types import Prompt
from rlvr.verifiers.verifiers_task import v1

from .judges import Judge, judge_of_one_turn, reward_of, with_thinking


def _classes() -> tuple[Any, Any, Any]:
    """Return the classes of a pack's task data, tasks and configuration, which subclass theirs."""
    vf = v1()

    class PackData(vf.TaskData):  # type: ignore[misc, name-defined]
        """A problem, without its reference: task data is written into traces."""

        problem: str

    class PackConfig(vf.TasksetConfig):  # type: ignore[misc, name-defined]
        """split: train or test."""

        split: str = "train"

    class PackTask(vf.Task[PackData]):  # type: ignore[misc, name-defined]
        """Scored by the pack's verifier. A verdict without score is an error of the task, and no reward."""

        pack: Callable[[], Judge]

        @vf.reward  # type: ignore[untyped-decorator]
        async def verdict(self, trace: Any) -> float | None:
            pack = type(self).pack()
            found = await asyncio.to_thread(pack.verdict, pack.problem(self.data.problem), _last_reply(trace))
            trace.info["verdict"] = {"status": str(found.status), "reason": found.reason, "extracted": found.extracted}
            if found.score is None:
                raise vf.TaskError(f"{found.status}: {found.reason}")
            return reward_of(found)

    return PackData, PackTask, PackConfig


def taskset(name: str, **options: Any) -> Any:
    """Return a Taskset class of the pack `name`, for the `__all__` of a module of yours. options: of `judge`.

    Its configuration has `split`: train (default) or test. Loading it raises ValueError for a pack that is played in
    turns, and for a verifier of whole batches.
    """
    vf = v1()
    pack_data, pack_task, pack_config = _classes()

    @cache
    def pack() -> Judge:
        return judge_of_one_turn(name, "verifiers", **options)

    task = type("PackTask", (pack_task,), {"pack": staticmethod(pack), "__module__": __name__})

    class PackTaskset(vf.Taskset[task, pack_config]):  # type: ignore[misc, name-defined]
        config_class = pack_config

        def load(self) -> Any:
            for problem in pack().part(self.config.split):
                system, user = _split(problem.prompt)
                data = pack_data(id=problem.id, prompt=user, system_prompt=system, problem=problem.id)
                yield task(data, self.config.task)

    return PackTaskset


def _last_reply(trace: Any) -> str:
    spoken = trace.assistant_messages
    own = spoken and (spoken[-1].content or "").strip() == trace.last_reply
    return with_thinking(trace.last_reply, spoken[-1].reasoning_content if own else None)


def _split(prompt: Prompt) -> tuple[str | None, Any]:
    """Return the system prompt and the rest: a text, if it is one message of the user."""
    if isinstance(prompt, str):
        return None, prompt
    rest = list(prompt)
    system = rest.pop(0)["content"] if rest and rest[0]["role"] == "system" else None
    if len(rest) == 1 and rest[0]["role"] == "user":
        return system, rest[0]["content"]
    vf = v1()
    kinds = {"user": vf.UserMessage, "assistant": vf.AssistantMessage, "system": vf.SystemMessage}
    return system, [kinds[message["role"]](content=message["content"]) for message in rest]

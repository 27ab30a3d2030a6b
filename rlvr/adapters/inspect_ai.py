"""Packs as tasks of inspect_ai 0.3.285, and verdicts as its scorers.

# tasks.py, run by `inspect eval tasks.py --model ...`
from inspect_ai import task
from rlvr.adapters.inspect_ai import pack_task

@task
def countdown():
    return pack_task("countdown", num_test=100)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rlvr.adapters.judges import Judge, judge, messages, with_thinking
from rlvr.core.types import Prompt, Verdict

MISSING = "this needs the package inspect_ai: pip install inspect_ai"


def _package() -> Any:
    try:
        import inspect_ai.dataset
        import inspect_ai.model
        import inspect_ai.scorer
        import inspect_ai.solver
    except ModuleNotFoundError as error:
        raise ValueError(f"{MISSING} ({error})") from error
    return inspect_ai


def scorer(pack: Judge, name: str = "rlvr") -> Any:
    """Return a scorer: the score, with the answer that was read and the reason; Score.unscored without one.

    A sample is the pack's problem whose id is in its metadata (`problem`); without it, and for a judge without a pack,
    the target is the reference, and of several targets the one with the highest score counts. Raise ValueError where
    inspect_ai is not installed, and for a verifier of whole batches.
    """
    scoring = _package().scorer
    pack.refuse_whole_batches("inspect_ai")
    import anyio.to_thread

    @scoring.scorer(metrics=[scoring.mean(), scoring.stderr()], name=name)  # type: ignore[untyped-decorator]
    def verdicts() -> Any:
        async def score(state: Any, target: Any) -> Any:
            key = (state.metadata or {}).get("problem") if pack.named else None
            wanted = list(target) if key is None and len(target) else [""]
            pairs = [(pack.problem(key, state.input_text, one), _said(state.output)) for one in wanted]
            verdicts = await anyio.to_thread.run_sync(pack.verdicts, pairs)
            verdict = _best(verdicts)
            told = {
                "answer": verdict.extracted,
                "explanation": verdict.reason,
                "metadata": {"status": str(verdict.status)},
            }
            if verdict.score is None:
                return scoring.Score.unscored(reason="scoring_failed", **told)
            return scoring.Score(value=verdict.score, **told)

        return score

    return verdicts()


def pack_task(name: str, *, part: str = "test", workers: int = 2, timeout: float = 10.0, **options: Any) -> Any:
    """Return a Task of a part of the pack `name` with these options. References stay here: targets are empty.

    Raise ValueError for a pack that is played in turns, and where inspect_ai is not installed.
    """
    package = _package()
    pack = judge(task=name, workers=workers, timeout=timeout, **options)
    if pack.environment is not None:
        raise ValueError(f"task {name!r} is played in turns; this adapter has one turn")
    samples = [
        package.dataset.Sample(
            input=_input(package, problem.prompt), target="", id=problem.id, metadata={"problem": problem.id}
        )
        for problem in pack.part(part)
    ]
    data = package.dataset.MemoryDataset(samples, name=name)
    return package.Task(dataset=data, solver=package.solver.generate(), scorer=scorer(pack))


def _best(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict of the highest score; one without score where that might have been correct."""
    best = max(verdicts, key=lambda one: -math.inf if one.score is None else one.score)
    return best if best.correct else next((one for one in verdicts if one.score is None), best)


def _said(output: Any) -> str:
    """Return a model's output, with the thinking that was cut off it."""
    content = output.message.content if output.choices else ""
    parts = [] if isinstance(content, str) else [part for part in content if part.type == "reasoning"]
    thought = "\n".join(part.summary or "" if part.redacted else part.reasoning for part in parts)
    return with_thinking(output.completion, thought)


def _input(package: Any, prompt: Prompt) -> Any:
    if isinstance(prompt, str):
        return prompt
    model = package.model
    kinds = {"user": model.ChatMessageUser, "assistant": model.ChatMessageAssistant, "system": model.ChatMessageSystem}
    return [kinds[message["role"]](content=message["content"]) for message in messages(prompt)]

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

from rlvr.core.types import Prompt, Verdict

from .judges import Judge, import_program, judge_of_one_turn, messages, with_thinking


def _package() -> Any:
    for part in ("dataset", "model", "scorer", "solver"):
        import_program(f"inspect_ai.{part}", "inspect_ai")
    return import_program("inspect_ai", "inspect_ai")


def scorer(pack: Judge, name: str = "rlvr") -> Any:
    """Return a scorer: the score with the extracted answer and the reason; Score.unscored without a score.

    A sample names the pack's problem by an id in its metadata (`problem`). Without it, and for a judge without a pack,
    the target is the reference; of several targets the one with the highest score counts. Raises ValueError if
    inspect_ai is not installed, and for a verifier of whole batches.
    """
    scoring = _package().scorer
    pack.refuse_whole_batches("inspect_ai")
    import anyio.to_thread

    @scoring.scorer(metrics=[scoring.mean(), scoring.stderr()], name=name)  # type: ignore[untyped-decorator]
    def verdicts() -> Any:
        async def score(state: Any, target: Any) -> Any:
            key = (state.metadata or {}).get("problem") if pack.has_problems else None
            wanted = list(target) if key is None and len(target) else [""]
            pairs = [(pack.problem(key, state.input_text, one), _output_text(state.output)) for one in wanted]
            verdicts = await anyio.to_thread.run_sync(pack.verdicts, pairs)
            verdict = _best(verdicts)
            shown = {
                "answer": verdict.extracted,
                "explanation": verdict.reason,
                "metadata": {"status": str(verdict.status)},
            }
            if verdict.score is None:
                return scoring.Score.unscored(reason="scoring_failed", **shown)
            return scoring.Score(value=verdict.score, **shown)

        return score

    return verdicts()


def pack_task(name: str, *, part: str = "test", **options: Any) -> Any:
    """Return a Task of a part of the pack `name`. References stay here: targets are empty. options: of `judge`.

    Raises ValueError for a pack that is played in turns, and if inspect_ai is not installed.
    """
    package = _package()
    pack = judge_of_one_turn(name, "inspect_ai", **options)
    samples = [
        package.dataset.Sample(
            input=_input(package, problem.prompt), target="", id=problem.id, metadata={"problem": problem.id}
        )
        for problem in pack.part(part)
    ]
    data = package.dataset.MemoryDataset(samples, name=name)
    return package.Task(dataset=data, solver=package.solver.generate(), scorer=scorer(pack))


def _best(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict with the highest score, or one without a score that might have been correct."""
    best = max(verdicts, key=lambda one: -math.inf if one.score is None else one.score)
    return best if best.correct else next((one for one in verdicts if one.score is None), best)


def _output_text(output: Any) -> str:
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

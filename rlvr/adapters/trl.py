"""Verdicts as reward functions of TRL 1.16 (GRPOTrainer, RLOOTrainer), and environments as its `environment_factory`.

    from rlvr.adapters import judge
    from rlvr.adapters.trl import reward, rows

    pack = judge(task="gsm8k")
    GRPOTrainer(..., reward_funcs=reward(pack), train_dataset=Dataset.from_list(rows(pack, "train")))

A pack with an environment is played in turns, each a call of the tool `act` by the model:

    GRPOTrainer(..., environment_factory=environment(pack), train_dataset=Dataset.from_list(rows(pack, "train")))

Nothing of TRL is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlvr.adapters.judging import Judge, World, said
from rlvr.types import Verdict

Reward = Callable[..., list[float | None]]


def rows(pack: Judge, part: str = "train") -> list[dict[str, Any]]:
    """Return a part of a pack as rows of a data set: `prompt`, and `problem`, its id. References stay here."""
    return [{"prompt": problem.prompt, "problem": problem.id} for problem in pack.part(part)]


def reward(pack: Judge, *, problem: str = "problem", reference: str = "reference", name: str = "rlvr") -> Reward:
    """Return a reward function: the score of each completion, None for a verdict without one.

    TRL leaves None out of the reward of that sample. A row is the pack's problem whose id is in the column `problem`;
    without that column its reference is in the column `reference`. Raise LookupError where there is neither.
    name: of the reward in TRL's logs.
    """

    def score(
        prompts: Sequence[Any], completions: Sequence[Any], completion_ids: Any = None, **columns: Any
    ) -> list[float | None]:
        if problem not in columns and reference not in columns:
            raise LookupError(f"the data set has no column {problem!r} and no column {reference!r}")
        keys = columns.get(problem, [None] * len(prompts))
        references = columns.get(reference, [None] * len(prompts))
        pairs = [
            (pack.problem(key, prompt, wanted), said(completion))
            for key, prompt, wanted, completion in zip(keys, prompts, references, completions, strict=True)
        ]
        return pack.scores(pairs)

    score.__name__ = name
    return score


def environment(pack: Judge) -> type:
    """Return a class of environments for `environment_factory`: the model takes its turns by calling the tool `act`.

    A row is the pack's problem whose id is in its column `problem`. The reward is the verdict's score and the rewards
    of turns; None for a verdict without score. An episode that has not ended is judged by what was said last. Raise
    ValueError for a pack without an environment, which `reward` judges.
    """
    if pack.environment is None:
        raise ValueError("this pack has no environment; use reward(pack) as a reward function")

    class PackEnvironment:
        def __init__(self) -> None:
            self._world: World | None = None
            self._verdict: Verdict | None = None

        def reset(self, *, problem: str, **columns: Any) -> None:
            if self._world is not None:
                self._world.close()
            self._world = World(pack, pack.problem(problem), "trl")
            self._said, self._earned, self._verdict = "", 0.0, None

        def act(self, text: str) -> str:
            """
            Take a turn in the environment.

            Args:
                text: What to say to the environment.

            Returns:
                The environment's reply.
            """
            assert self._world is not None, "TRL calls reset first"
            if self._verdict is not None:
                return "The episode has ended."
            self._said = text
            found = self._world.say(text)
            if isinstance(found, Verdict):
                self._verdict = found
                return "The episode has ended."
            self._earned += found.reward
            return found.text

        def get_reward(self) -> float | None:
            assert self._world is not None, "TRL calls reset first"
            verdict = self._verdict or pack.verdict(self._world.problem, self._said)
            return None if verdict.score is None else verdict.score + self._earned

    return PackEnvironment

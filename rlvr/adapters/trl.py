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

import json
from collections.abc import Callable, Sequence
from typing import Any

from rlvr.core.types import Verdict

from .judges import Judge, Rollout, completion_text, messages, reward_of

Reward = Callable[..., list[float | None]]


def rows(pack: Judge, part: str = "train") -> list[dict[str, Any]]:
    """Return a part of a pack as rows of a data set: `prompt`, and `problem`, its id. References stay here.

    Prompts stay texts if all of them are and the pack has no environment; TRL offers tools only in chats. Otherwise
    they are messages.
    """
    problems = pack.part(part)
    texts = pack.environment is None and all(isinstance(problem.prompt, str) for problem in problems)
    return [
        {"prompt": problem.prompt if texts else messages(problem.prompt), "problem": problem.id} for problem in problems
    ]


def reward(pack: Judge, *, problem: str = "problem", reference: str = "reference", name: str = "rlvr") -> Reward:
    """Return a reward function: the reward of each completion, None for a verdict without score.

    TRL leaves a sample out of its group only if every reward function returns None. If another one scores it, None
    counts as 0: join such verifiers by `combine` instead. The column `problem` has the id of a pack's problem; without
    that column, and for a judge without a pack, the column `reference` has the reference. The last message of the
    assistant is judged with its thinking. A verifier of whole batches gets what TRL passes at once. name: of the reward
    in TRL's logs. Raises LookupError for a data set without either column.
    """

    def score(
        prompts: Sequence[Any], completions: Sequence[Any], completion_ids: Any = None, **columns: Any
    ) -> list[float | None]:
        if problem not in columns and reference not in columns:
            raise LookupError(f"the data set has no column {problem!r} and no column {reference!r}")
        nothing = [None] * len(prompts)
        references = columns.get(reference, nothing)
        # Without a pack, a column of that name is something else, such as the text of the problem.
        keys = columns.get(problem, nothing) if pack.has_problems or reference not in columns else nothing
        pairs = [
            (pack.problem(key, prompt, wanted), completion_text(completion))
            for key, prompt, wanted, completion in zip(keys, prompts, references, completions, strict=True)
        ]
        return pack.scores(pairs)

    score.__name__ = name
    return score


def environment(pack: Judge) -> type:
    """Return a class of environments for `environment_factory`: the model takes its turns by calling the tool `act`.

    The column `problem` has the id of the pack's problem. The reward is the verdict's plus those of turns; None for a
    verdict without score, also if the environment failed. An episode that has not ended is judged by what was said
    last. Raises ValueError for a pack without an environment (use `reward`), and for a verifier of whole batches.
    """
    if pack.environment is None:
        raise ValueError("this pack has no environment; use reward(pack) as a reward function")
    pack.refuse_whole_batches("TRL's environment")

    class PackEnvironment:
        def __init__(self) -> None:
            self._rollout: Rollout | None = None

        def reset(self, *, problem: str | None = None, **columns: Any) -> None:
            if self._rollout is not None:
                self._rollout.close()
            if problem is None:
                raise LookupError("a row without the column 'problem'; rows(pack) has it")
            self._rollout = Rollout(pack, pack.problem(problem), "trl")

        def act(self, text: str) -> str:
            """
            Take a turn in the environment.

            Args:
                text: What to say to the environment.

            Returns:
                The environment's reply.
            """
            assert self._rollout is not None, "TRL calls reset first"
            # What the model writes as the argument may be any value of JSON.
            found = self._rollout.say(text if isinstance(text, str) else json.dumps(text, default=str))
            return "The episode has ended." if isinstance(found, Verdict) else found.text

        def get_reward(self) -> float | None:
            assert self._rollout is not None, "TRL calls reset first"
            reward = reward_of(self._rollout.judge())
            return None if reward is None else reward + self._rollout.earned

    return PackEnvironment

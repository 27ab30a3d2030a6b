"""Packs as text environments of SkyRL-gym 0.4, one turn or, where the pack has an environment, several.

from rlvr.adapters import judge
from rlvr.adapters.skyrl import environment

Countdown = environment(judge(task="countdown"))   # register("countdown", entry_point="my_module:Countdown")
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rlvr.core.types import Problem, Reply, Verdict

from .judges import Judge, Rollout, import_program, score_of


def environment(pack: Judge) -> Any:
    """Return a BaseTextEnv class of a pack.

    `extras` of an instance hold the id of a problem as `problem`; or, as in SkyRL's rows, reward_spec.ground_truth is
    that id, or with judge(verifier) the reference. `max_turns` ends a rollout: what was said last is then judged.
    Raises Unscored for a verdict without score, LookupError for extras without problem, ValueError if SkyRL-gym is not
    installed and for a verifier of whole batches.
    """
    pack.refuse_whole_batches("SkyRL")
    envs = import_program("skyrl_gym.envs.base_text_env", "skyrl-gym, version 0.4")

    class PackEnv(envs.BaseTextEnv):  # type: ignore[misc, name-defined]
        def __init__(self, env_config: Any = None, extras: Mapping[str, Any] | None = None) -> None:
            super().__init__()
            given = extras or {}
            spec = given.get("reward_spec") or {}
            if given.get("problem") is None and "ground_truth" not in spec:
                raise LookupError("extras have no 'problem', the id of one, and no reward_spec.ground_truth")
            truth = spec.get("ground_truth")
            key = given.get("problem") or truth if pack.has_problems else None
            most = given.get("max_turns")
            self.max_turns = math.inf if most is None else most
            self._rollout = Rollout(pack, pack.problem(key, "", truth), "skyrl")

        @property
        def problem(self) -> Problem:
            return self._rollout.problem

        def init(self, prompt: Any) -> Any:
            if not pack.has_problems:
                self._rollout.set_prompt(prompt)
            return super().init(prompt)

        def step(self, action: str) -> Any:
            self.turns += 1
            reply, earned = self._rollout.say(action), 0.0
            if isinstance(reply, Reply) and self.turns >= self.max_turns:
                earned, reply = reply.reward, self._rollout.end()
            if isinstance(reply, Verdict):
                metadata = {"status": str(reply.status), "reason": reply.reason, "extracted": reply.extracted}
                reward = score_of(reply) + earned
                return envs.BaseTextEnvStepOutput(observations=[], reward=reward, done=True, metadata=metadata)
            message = {"role": "user" if reply.role == "tool" else reply.role, "content": reply.text}
            return envs.BaseTextEnvStepOutput(observations=[message], reward=reply.reward, done=False, metadata={})

        def close(self) -> None:
            self._rollout.close()

    return PackEnv

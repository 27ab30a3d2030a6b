"""Packs as text environments of SkyRL-gym 0.4, one turn or, where the pack has an environment, several.

from rlvr.adapters import judge
from rlvr.adapters.skyrl import environment

Countdown = environment(judge(task="countdown"))   # register("countdown", entry_point="my_module:Countdown")
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlvr.adapters.judging import Judge, World, scored
from rlvr.types import Verdict

MISSING = "this needs the package skyrl-gym, version 0.4: pip install skyrl-gym"


def environment(pack: Judge) -> Any:
    """Return a BaseTextEnv class of a pack. Raise ValueError where SkyRL-gym is not installed.

    `extras` of an instance holds `problem`, the id of a problem, or as in SkyRL's rows reward_spec.ground_truth, which
    is that id, or with judge(verifier) the reference. A verdict without score raises Unscored.
    """
    try:
        from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
    except ModuleNotFoundError as error:
        raise ValueError(f"{MISSING} ({error})") from error

    class PackEnv(BaseTextEnv):  # type: ignore[misc]
        def __init__(self, env_config: Any = None, extras: Mapping[str, Any] | None = None) -> None:
            super().__init__()
            given = extras or {}
            truth = given.get("reward_spec", {}).get("ground_truth")
            key = given.get("problem", truth if any(pack.parts.values()) else None)
            self.problem = pack.problem(key, "", truth)
            self._world = World(pack, self.problem, "skyrl")

        def step(self, action: str) -> Any:
            self.turns += 1
            reply = self._world.say(action)
            if isinstance(reply, Verdict):
                metadata = {"status": str(reply.status), "reason": reply.reason, "extracted": reply.extracted}
                return BaseTextEnvStepOutput(observations=[], reward=scored(reply), done=True, metadata=metadata)
            message = {"role": "user" if reply.role == "tool" else reply.role, "content": reply.text}
            return BaseTextEnvStepOutput(observations=[message], reward=reply.reward, done=False, metadata={})

        def close(self) -> None:
            self._world.close()

    return PackEnv

"""Verdicts as `reward_func` of OpenRLHF 0.11 (`--remote_rm_url reward.py`).

    # reward.py
    from rlvr.adapters import judge
    from rlvr.adapters.openrlhf import reward_func as of

    reward_func = of(judge("math"))

Labels are references; with judge(task=...), ids of problems. Nothing of OpenRLHF is imported, and torch when it is
called. Packs of several turns are played by an agent (`--agent_func_path agent.py`):

    # agent.py
    from openrlhf.utils.agent import MultiTurnAgentExecutor
    from rlvr.adapters import judge
    from rlvr.adapters.openrlhf import agent

    class AgentExecutor(MultiTurnAgentExecutor):
        def __init__(self):
            reply = "\\n<|im_start|>user\\n{text}<|im_end|>\\n<|im_start|>assistant\\n"
            super().__init__(agent(judge(task="hops"), reply=reply, ends=["<|im_end|>"]))
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from rlvr.core.types import Verdict

from .judges import Judge, Rollout, import_program, score_of


def reward_func(pack: Judge, *, ends: Sequence[str] = ()) -> Callable[..., dict[str, Any]]:
    """Return `reward_func(queries, prompts, labels)`: rewards, scores and extra_logs, tensors of shape (n,).

    A query is prompt and response as one text. ends: special tokens that are cut off its end, such as "<|im_end|>".
    A verdict without score raises Unscored. OpenRLHF logs that, takes None as the reward, and looks for a reward model.
    Raises ValueError for a query without its prompt, and for a verifier of whole batches.
    """
    pack.refuse_whole_batches("OpenRLHF")

    def score(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any], **unused: Any) -> dict[str, Any]:
        import torch

        pairs = []
        for query, prompt, label in zip(queries, prompts, labels, strict=True):
            found, response = prompt in query, query.partition(prompt)[2] if prompt else query
            if not found:
                raise ValueError(f"the query {query[:60]!r} does not hold its prompt {prompt[:60]!r}")
            pairs.append((pack.problem(label if pack.has_problems else None, prompt, label), _cut_ends(response, ends)))
        verdicts = pack.verdicts(pairs)
        rewards = torch.tensor([score_of(verdict) for verdict in verdicts], dtype=torch.float32)
        correct = torch.tensor([float(verdict.correct) for verdict in verdicts], dtype=torch.float32)
        return {"rewards": rewards, "scores": rewards, "extra_logs": {"correct": correct}}

    return score


def agent(pack: Judge, *, reply: str = "{text}", ends: Sequence[str] = ()) -> Any:
    """Return a class of agents (AgentInstanceBase) that play a pack: several turns where it has an environment.

    reply: a template with {text} for the text of a reply, as the model's chat template frames it. It follows the token
    that ended the turn, which OpenRLHF keeps. ends: special tokens that are cut off the end of a turn. Labels are those
    of `reward_func`. Rewards of turns are added to the verdict's; a verdict without score raises Unscored. A rollout
    that reaches OpenRLHF's `max_len` has the rewards of its turns and no verdict. Raises ValueError if OpenRLHF is not
    installed, for a `reply` without {text} or that begins with one of `ends`, and for a verifier of whole batches.
    """
    pack.refuse_whole_batches("OpenRLHF")
    if "{text}" not in reply:
        raise ValueError(f"reply {reply!r}: expected {{text}} in it")
    if any(end and reply.startswith(end) for end in ends):
        raise ValueError(f"reply {reply!r}: expected what follows the end of a turn, which the model has sampled")
    base = import_program("openrlhf.utils.agent", "openrlhf, version 0.11").AgentInstanceBase

    class PackAgent(base):  # type: ignore[misc, valid-type]
        def __init__(self, *unused: Any, **options: Any) -> None:
            self.rollout: Rollout | None = None

        async def reset(self, states: dict[str, Any], **unused: Any) -> dict[str, Any]:
            label, prompt = states.get("label"), states.get("observation", "")
            self.rollout = Rollout(pack, pack.problem(label if pack.has_problems else None, prompt, label), "openrlhf")
            return states

        async def step(self, states: dict[str, Any], **unused: Any) -> dict[str, Any]:
            import torch

            assert self.rollout is not None, "OpenRLHF calls reset first"
            said = _cut_ends(states["action_text"], ends)
            found = await asyncio.to_thread(self.rollout.say, said)
            if isinstance(found, Verdict):
                reward, right, feedback = score_of(found), found.correct, ""
            else:
                reward, right, feedback = found.reward, False, reply.replace("{text}", found.text)
            return {
                "rewards": torch.tensor(reward),
                "scores": torch.tensor(reward),
                "environment_feedback": feedback,
                "done": isinstance(found, Verdict),
                "sampling_params": states.get("sampling_params"),
                # Also before the end: OpenRLHF cannot split a batch in which some rollouts lack it.
                "extra_logs": {"correct": torch.tensor(float(right))},
            }

    return PackAgent


def _cut_ends(response: str, ends: Sequence[str]) -> str:
    """Return a response without special tokens at its end."""
    while end := next((end for end in ends if end and response.endswith(end)), ""):
        response = response[: -len(end)]
    return response

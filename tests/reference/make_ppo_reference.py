"""Writes tests/golden/ppo_reference.json: random tensors, and what verl's and TRL's own functions make of them.

    pip install verl==0.9.1 trl==1.16.0
    python tests/reference/make_ppo_reference.py

verl: compute_gae_advantage_return, compute_policy_loss_vanilla and compute_value_loss of verl.trainer.ppo.core_algos.
TRL: DPOTrainer._compute_loss, given the log-probabilities of a model that has none but these.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

ROWS, WIDTH = 6, 9
DPO_BETA = 0.3


def tensors() -> dict[str, Tensor]:
    """Rows of one to nine tokens; logprobs and values that have moved far enough for every clip to bite somewhere."""
    g = torch.Generator().manual_seed(7)
    lengths = torch.tensor([9, 1, 5, 7, 2, 9])
    mask = (torch.arange(WIDTH) < lengths[:, None]).float()
    old = -2 * torch.rand(ROWS, WIDTH, generator=g)
    values = torch.rand(ROWS, WIDTH, generator=g)
    scores = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.5, -1.0])
    cost = 0.05 * torch.rand(ROWS, WIDTH, generator=g)
    rewards = -cost
    rewards[torch.arange(ROWS), lengths - 1] += scores
    made = {
        "mask": mask,
        "old_logprobs": old,
        "logprobs": old + 0.4 * torch.randn(ROWS, WIDTH, generator=g),
        "ref_logprobs": old + 0.2 * torch.randn(ROWS, WIDTH, generator=g),
        "old_values": values,
        "values": values + 0.4 * torch.randn(ROWS, WIDTH, generator=g),
        "cost": cost,
        "rewards": rewards,
    }
    return {"scores": scores, **{name: value * mask for name, value in made.items()}}


def by_verl(t: dict[str, Tensor], gamma: float, lam: float, dual_clip: float, value_clip: float) -> dict[str, Any]:
    """Advantages (whitened), returns, both losses and their gradients."""
    from verl.trainer.ppo import core_algos
    from verl.workers.config import ActorConfig

    mask = t["mask"]
    advantages, returns = core_algos.compute_gae_advantage_return(t["rewards"], t["old_values"], mask, gamma, lam)
    logprobs, values = (t[name].clone().requires_grad_() for name in ("logprobs", "values"))
    actor = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio_c=dual_clip)
    policy, _ = core_algos.compute_policy_loss_vanilla(
        t["old_logprobs"], logprobs, advantages, mask, "token-mean", actor
    )
    value, clipped = core_algos.compute_value_loss(values, returns, t["old_values"], mask, value_clip)
    (policy + value).backward()
    return {
        "settings": {"gamma": gamma, "lam": lam, "dual_clip": dual_clip, "value_clip": value_clip},
        "advantages": (advantages * mask).tolist(),
        "returns": (returns * mask).tolist(),
        "policy_loss": float(policy.detach()),
        "value_loss": float(value.detach()),
        "value_clipped": float(clipped),
        "grad_logprobs": logprobs.grad.tolist(),
        "grad_values": values.grad.tolist(),
    }


def by_trl(t: dict[str, Tensor]) -> dict[str, Any]:
    """DPO's loss of the first three rows, chosen, against the last three, and what TRL logs of it."""
    from trl import DPOTrainer

    logprobs = t["logprobs"].clone().requires_grad_()
    zeros = torch.zeros_like(logprobs)
    others = {"entropy": zeros, "mean_logits": zeros, "is_top1": zeros.bool(), "log_sum_sq_probs": zeros}
    same = SimpleNamespace(
        device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x, unwrap_model=lambda model: model
    )
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=same,
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        loss_types=["sigmoid"],
        loss_weights=[1.0],
        use_weighting=False,
        beta=DPO_BETA,
        label_smoothing=0.0,
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    # TRL's tensors begin at the second token: its mask has one column more.
    mask = torch.cat([torch.zeros(ROWS, 1), t["mask"]], dim=1)
    reference = (t["ref_logprobs"] * t["mask"]).sum(-1).chunk(2)
    inputs = {
        "input_ids": torch.zeros(mask.shape, dtype=torch.long),
        "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
        "ref_chosen_logps": reference[0],
        "ref_rejected_logps": reference[1],
    }

    def model(**_: Any) -> SimpleNamespace:
        return SimpleNamespace(log_probs=logprobs * t["mask"], **others)

    loss = DPOTrainer._compute_loss(trainer, model, inputs, False)
    loss.backward()
    logged = {name: values[0] for name, values in trainer._metrics["train"].items() if name.startswith("rewards/")}
    return {"beta": DPO_BETA, "loss": float(loss.detach()), "grad_logprobs": logprobs.grad.tolist(), **logged}


def main() -> None:
    """Writes the file."""
    t = tensors()
    content = {
        "tensors": {name: value.tolist() for name, value in t.items()},
        "ppo": [by_verl(t, 1.0, 0.95, 3.0, 0.2), by_verl(t, 0.99, 0.8, 1.5, 0.5)],
        "dpo": by_trl(t),
    }
    path = Path(__file__).parents[1] / "golden" / "ppo_reference.json"
    path.write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

"""Writes tests/golden/loss_reference.json: random tensors, and what TRL's and verl's own functions make of them.

    pip install verl==0.9.1 trl==1.16.0
    python tests/reference/make_loss_reference.py

TRL: GRPOTrainer._compute_loss (sapo, luspo, vespo with and without importance weights) and KTOTrainer._compute_loss,
given the log-probabilities of a model that has none but these. verl: compute_policy_loss_sapo,
compute_reinforce_plus_plus_outcome_advantage and AdaptiveKLController of verl.trainer.ppo.core_algos.
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
KTO = {"beta": 0.3, "desirable_weight": 1.2, "undesirable_weight": 0.7}
TEMPERATURES = {"sapo_temperature_pos": 0.9, "sapo_temperature_neg": 1.3}
GAMMAS = {"vespo_k_pos": 1.5, "vespo_lambda_pos": 2.5, "vespo_k_neg": 3.5, "vespo_lambda_neg": 2.2}


def tensors() -> dict[str, Tensor]:
    """Rows of one to nine tokens; logprobs that have moved far enough for every gate to bite somewhere."""
    g = torch.Generator().manual_seed(11)
    lengths = torch.tensor([9, 1, 5, 7, 2, 9])
    mask = (torch.arange(WIDTH) < lengths[:, None]).float()
    old = -2 * torch.rand(ROWS, WIDTH, generator=g)
    made = {
        "old_logprobs": old,
        "logprobs": old + 0.3 * torch.randn(ROWS, WIDTH, generator=g),
        "ref_logprobs": old + 0.2 * torch.randn(ROWS, WIDTH, generator=g) - 0.1,
        "weights": (0.3 * torch.randn(ROWS, WIDTH, generator=g)).exp().clamp(max=1.5),
        "cost": 0.05 * torch.rand(ROWS, WIDTH, generator=g),
    }
    advantages = torch.tensor([1.0, -0.5, 0.0, 1.5, -1.0, -1.0])
    return {"mask": mask, "advantages": advantages, **{name: value * mask for name, value in made.items()}}


def one_process() -> SimpleNamespace:
    """One process."""
    same = {"gather": lambda x: x, "gather_for_metrics": lambda x: x, "reduce": lambda x, reduction: x}
    return SimpleNamespace(device="cpu", num_processes=1, sync_gradients=True, unwrap_model=lambda model: model, **same)


def by_grpo(t: dict[str, Tensor], loss_type: str, weights: Tensor | None = None) -> dict[str, Any]:
    """A policy loss of GRPOTrainer, and its gradient."""
    from trl import GRPOTrainer

    logprobs = t["logprobs"].clone().requires_grad_()
    level = "sequence" if loss_type == "luspo" else "token"
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=one_process(),
        args=SimpleNamespace(
            delta=None, use_bias_correction_kl=False, steps_per_generation=1, **TEMPERATURES, **GAMMAS
        ),
        loss_type=loss_type,
        importance_sampling_level=level,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        beta=0.0,
        epsilon_low=0.2,
        epsilon_high=0.28,
        use_vllm=weights is not None,
        vllm_importance_sampling_correction=weights is not None,
        current_gradient_accumulation_steps=1,
        max_completion_length=WIDTH,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, torch.zeros_like(logprobs), None),
    )
    inputs = {
        "prompt_ids": torch.zeros(ROWS, 1, dtype=torch.long),
        "prompt_mask": torch.ones(ROWS, 1, dtype=torch.long),
        "completion_ids": torch.zeros(ROWS, WIDTH, dtype=torch.long),
        "completion_mask": t["mask"].long(),
        "advantages": t["advantages"],
        "old_per_token_logps": t["old_logprobs"],
        "num_items_in_batch": t["mask"].sum(),
    }
    if weights is not None:
        inputs["importance_sampling_ratio"] = torch.where(t["mask"].bool(), weights, 1.0)
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    return {"loss": float(loss.detach()), "grad_logprobs": logprobs.grad.tolist()}


def by_kto(t: dict[str, Tensor], kl: float) -> dict[str, Any]:
    """KTO's loss of rows of which every second is good, for this estimate of the KL divergence, and its gradient."""
    from trl import KTOTrainer

    logprobs = t["logprobs"].clone().requires_grad_()
    zeros = torch.zeros_like(logprobs)
    label = torch.tensor([True, False] * (ROWS // 2))
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=one_process(),
        aux_loss_enabled=False,
        precompute_ref_logps=True,
        calculate_KL=True,
        loss_type="kto",
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
        _compute_kl_logps=lambda *_: torch.full((ROWS,), kl),
        **KTO,
    )
    mask = torch.cat([torch.zeros(ROWS, 1), t["mask"]], dim=1)
    inputs = {
        "input_ids": torch.zeros(mask.shape, dtype=torch.long),
        "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
        "label": label,
        "ref_logps": t["ref_logprobs"].sum(-1),
        "ref_KL_logps": torch.zeros(ROWS),
    }

    def model(**_: Any) -> SimpleNamespace:
        return SimpleNamespace(log_probs=logprobs * t["mask"], entropy=zeros, mean_logits=zeros)

    loss = KTOTrainer._compute_loss(trainer, model, inputs, False)
    loss.backward()
    return {**KTO, "kl": kl, "loss": float(loss.detach()), "grad_logprobs": logprobs.grad.tolist()}


def by_verl(t: dict[str, Tensor]) -> dict[str, Any]:
    """SAPO's loss, the token advantages of REINFORCE++, and a KL coefficient that follows some divergences."""
    from verl.trainer.ppo import core_algos
    from verl.workers.config import ActorConfig

    logprobs = t["logprobs"].clone().requires_grad_()
    tau = {"tau_pos": TEMPERATURES["sapo_temperature_pos"], "tau_neg": TEMPERATURES["sapo_temperature_neg"]}
    actor = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **tau)
    advantages = t["advantages"][:, None].expand(ROWS, WIDTH)
    loss, _ = core_algos.compute_policy_loss_sapo(t["old_logprobs"], logprobs, advantages, t["mask"], config=actor)
    loss.backward()
    rewards = -t["cost"]
    rewards[torch.arange(ROWS), t["mask"].sum(-1).long() - 1] += t["advantages"]
    whitened, _ = core_algos.compute_reinforce_plus_plus_outcome_advantage(
        rewards, t["mask"], config=SimpleNamespace(gamma=0.98)
    )
    controller = core_algos.AdaptiveKLController(0.1, target_kl=0.02, horizon=500)
    coefficients = []
    for kl, completions in [(0.03, 64), (0.005, 64), (0.021, 10), (-0.01, 300)]:
        controller.update(kl, completions)
        coefficients.append([kl, completions, float(controller.value)])
    return {
        "sapo": {"loss": float(loss.detach()), "grad_logprobs": logprobs.grad.tolist()},
        "reinforce_plus_plus": {"gamma": 0.98, "advantages": whitened.tolist()},
        "adaptive_kl": {"start": 0.1, "target": 0.02, "horizon": 500, "coefficients": coefficients},
    }


def main() -> None:
    """Writes the file."""
    t = tensors()
    content = {
        "settings": {**TEMPERATURES, **GAMMAS},
        "tensors": {name: value.tolist() for name, value in t.items()},
        "trl": {
            **{name: by_grpo(t, name) for name in ("sapo", "luspo", "vespo")},
            "vespo_weighted": by_grpo(t, "vespo", t["weights"]),
            "kto": by_kto(t, 0.25),
        },
        "verl": by_verl(t),
    }
    path = Path(__file__).parents[1] / "golden" / "loss_reference.json"
    path.write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

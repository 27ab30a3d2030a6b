"""Writes tests/golden/distillation_reference.json: random logits, and what TRL's own functions make of them.

    pip install trl==1.16.0
    python tests/reference/make_distillation_reference.py

GKDTrainer.generalized_jsd_loss; the divergence of DistillationTrainer (`_chunked_divergence_loss`, given states whose
LM head is the identity); SDPOTrainer._compute_self_distillation_loss (whole distributions, and sampled tokens with the
clipped importance ratio) and, for the teacher's top k, the lines of its `_compute_server_distillation_loss`:
`add_tail_bucket` and `compute_divergence`.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

ROWS, WIDTH, VOCABULARY, TOP, CLIP = 4, 6, 11, 3, 1.5
BETAS = (0.0, 0.1, 0.5, 0.9, 1.0)


def tensors() -> dict[str, Tensor]:
    """Logits of a student and a teacher, sampled tokens, their logprobs when they were sampled, and a mask."""
    g = torch.Generator().manual_seed(5)
    shape = (ROWS, WIDTH, VOCABULARY)
    student = 2 * torch.randn(shape, generator=g)
    tokens = torch.randint(VOCABULARY, (ROWS, WIDTH), generator=g)
    now = student.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    return {
        "student": student,
        "teacher": student + 1.5 * torch.randn(shape, generator=g),
        "tokens": tokens,
        "old_logprobs": now + 0.5 * torch.randn(ROWS, WIDTH, generator=g),
        "mask": (torch.arange(WIDTH) < torch.tensor([6, 2, 4, 1])[:, None]).float(),
    }


def with_gradient(t: dict[str, Tensor], loss_of: Any) -> dict[str, Any]:
    """A loss of the student's logits, and its gradient."""
    student = t["student"].clone().requires_grad_()
    loss = loss_of(student)
    loss.backward()
    return {"loss": float(loss.detach()), "grad": student.grad.tolist()}


def by_gkd(t: dict[str, Tensor], beta: float) -> dict[str, Any]:
    """GKD's loss, a mean over the masked tokens."""
    from trl.experimental.gkd import GKDTrainer

    labels = torch.where(t["mask"].bool(), t["tokens"], -100)
    return with_gradient(t, lambda s: GKDTrainer.generalized_jsd_loss(s, t["teacher"], labels, beta=beta))


def by_distillation(t: dict[str, Tensor], beta: float) -> dict[str, Any]:
    """DistillationTrainer's loss, a mean over the masked tokens."""
    from trl.trainer.distillation_trainer import _chunked_divergence_loss

    head = torch.eye(VOCABULARY)
    return with_gradient(t, lambda s: _chunked_divergence_loss(s, t["teacher"], head, head, t["mask"], beta)[0])


def by_sdpo(t: dict[str, Tensor], mode: str, alpha: float, clip: float | None = None) -> dict[str, Any]:
    """SDPO's loss, a mean over sequences of means over their tokens."""
    from trl.experimental.sdpo.sdpo_trainer import DistillationLogits, SDPOTrainer

    trainer = SimpleNamespace(
        args=SimpleNamespace(
            distillation_mode=mode, distillation_alpha=alpha, distillation_is_clip=clip, distillation_topk=None
        ),
        accelerator=SimpleNamespace(gather=lambda x: x),
        _log_self_distillation_metric=lambda *_: None,
    )

    def loss_of(student: Tensor) -> Tensor:
        logits = DistillationLogits(t["tokens"], t["mask"], t["mask"], student, t["teacher"])
        inputs = {} if clip is None else {"old_per_token_logps": t["old_logprobs"]}
        return SDPOTrainer._compute_self_distillation_loss(trainer, SimpleNamespace(training=True), inputs, logits)

    return with_gradient(t, loss_of)


def by_sdpo_top(t: dict[str, Tensor], alpha: float) -> dict[str, Any]:
    """SDPO's loss on the teacher's top k with a tail, a mean over the masked tokens."""
    from trl.experimental.sdpo.loss_utils import add_tail_bucket, compute_divergence

    best, ids = t["teacher"].log_softmax(-1).topk(TOP, dim=-1)

    def loss_of(student: Tensor) -> Tensor:
        own = student.log_softmax(-1).gather(-1, ids)
        per_token = compute_divergence(add_tail_bucket(own), add_tail_bucket(best), alpha)
        return (per_token * t["mask"]).sum() / t["mask"].sum()

    return with_gradient(t, loss_of)


def main() -> None:
    t = tensors()
    found = {
        "tensors": {name: value.tolist() for name, value in t.items()},
        "gkd": {str(beta): by_gkd(t, beta) for beta in BETAS},
        "distillation": {str(beta): by_distillation(t, beta) for beta in BETAS},
        "sdpo": {str(alpha): by_sdpo(t, "full_logits", alpha) for alpha in BETAS},
        "sdpo_top": {str(alpha): by_sdpo_top(t, alpha) for alpha in BETAS},
        "sdpo_sampled": by_sdpo(t, "sampled_token", 1.0, CLIP),
        "clip": CLIP,
        "top": TOP,
    }
    path = Path(__file__).parents[1] / "golden" / "distillation_reference.json"
    path.write_text(json.dumps(json.loads(json.dumps(found), parse_float=lambda x: round(float(x), 7))) + "\n")


if __name__ == "__main__":
    main()

"""Who teaches: the policy itself in one of four forms, another model in this process, or one on a server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from accelerate import Accelerator
from torch import Tensor

from rlvr.config import Config, TeacherConfig
from rlvr.core.types import Group, Problem, incorrect
from rlvr.distributed import gather
from rlvr.model.load.policy import Policy, load_policy
from rlvr.model.text.context import context_limit

from .feedback import Feedback
from .served import ServedTeacher


@dataclass
class Teacher:
    """A teacher.

    policy: a model in this process; None: the teacher is on a server. served: the client of that server, in the first
    process only, which sends the requests of all. feedback: makes the teacher's prompts; None: it reads the policy's
    prompts. limit: its context length in tokens; None: no limit. parameters: number of weights of a model of its own.
    follows: share with which the policy's weights enter its own after each step (0: none). off_policy: adds the
    gradient on demonstrations for an update's number, and returns the loss.
    """

    settings: TeacherConfig
    policy: Policy | None = None
    served: ServedTeacher | None = None
    feedback: Feedback | None = None
    limit: int | None = None
    parameters: int = 0
    follows: float = 0.0
    off_policy: Callable[[int], float] | None = None

    @property
    def allows_threads(self) -> bool:
        """Whether several threads may compute with it beside the policy."""
        return self.policy is None or self.policy.allows_threads

    def weight_of(self, pack: str | None) -> float:
        return self.settings.weights_of_packs.get(pack or "", self.settings.weight)

    def prompts_of(self, policy: Policy, group: Group) -> list[tuple[int, ...]] | None:
        """Return the token ids of the teacher's prompt for each completion of a group: () without feedback on it.

        None: it reads the policy's prompts. If a prompt leaves no room for its completion, () takes its place.
        """
        if self.feedback is None:
            return None
        rendered = [() if p is None else tuple(policy.render(p)) for p in self.feedback.prompts_of(group)]
        lengths = [len(completion.token_ids) for completion in group.completions]
        return [ids if self.limit is None or len(ids) + n <= self.limit else () for ids, n in zip(rendered, lengths)]

    def warn_of_unknown(self, policy: Policy, problem: Problem) -> str:
        """Return a warning if the tokenizer has no tokens for parts of the teacher's prompts; "" if it has all."""
        if self.feedback is None:
            return ""
        told = self.feedback.prompt_of(problem, incorrect("reason"), "")
        return "" if told is None else policy.warning_of_unknown([told], "teacher's prompts")

    @torch.no_grad()
    def follow(self, policy: Policy) -> None:
        """Move the teacher's weights towards the policy's by the share `follows`, after a step."""
        if not self.follows or self.policy is None:
            return
        present = dict(policy.model.named_parameters())
        for name, weight in self.policy.model.named_parameters():
            if present[name].requires_grad:
                weight.copy_(torch.lerp(weight.float(), present[name].float(), self.follows))

    def tensors(self, policy: Policy) -> dict[str, Tensor]:
        """Return the weights that a checkpoint must hold, by name, on the CPU (a view, if they are there already)."""
        if not self.follows or self.policy is None:
            return {}
        trained = {name for name, weight in policy.model.named_parameters() if weight.requires_grad}
        weights = self.policy.model.named_parameters()
        return {name: weight.detach().contiguous().cpu() for name, weight in weights if name in trained}

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore the weights that `tensors` returned."""
        assert self.policy is not None
        for name, weight in self.policy.model.named_parameters():
            if name in tensors:
                weight.copy_(tensors[name])


def open_teacher(config: Config, policy: Policy, verifier: Any, accelerator: Accelerator) -> Teacher | None:
    """Return the teacher of a run; None where the algorithm distils none. The policy is as the run begins.

    Raises ValueError for a model that cannot be loaded, a server that cannot be used, and another tokenizer than the
    policy's.
    """
    settings, kind = config.teacher, config.teacher_kind
    if settings is None:
        return None
    feedback = Feedback(verifier, settings.tells, settings.template) if config.algo.row.tells else None
    teacher = Teacher(settings, feedback=feedback, follows=settings.rate if kind == "ema" else 0.0)
    if kind == "server":
        if accelerator.is_main_process:
            teacher.served = ServedTeacher(settings, policy, config.run.out_dir)
        teacher.limit = gather([] if teacher.served is None else [teacher.served.limit], accelerator)[0]
        return teacher
    own: dict[str, Callable[[], Policy]] = {
        "model": lambda: load_teacher(config, policy),
        "base": policy.without_adapter,
        "start": policy.reference,
        "ema": policy.frozen_copy,
        "live": lambda: policy,
    }
    teacher.policy = own[kind]()
    if kind == "model":
        teacher.parameters = sum(weight.numel() for weight in teacher.policy.model.parameters())
    teacher.limit = context_limit(teacher.policy.causal.config)
    return teacher


def load_teacher(config: Config, policy: Policy) -> Policy:
    """Return the teacher's model, frozen, on the policy's device, its weights in the dtype of the computation.

    Raises ValueError for another tokenizer.
    """
    assert config.teacher is not None
    weights: Literal["float32", "bfloat16"] = "bfloat16" if policy.dtype is torch.bfloat16 else "float32"
    wanted = config.teacher.model_beside(config.model)
    teacher = load_policy(replace(wanted, device=str(policy.device), weights=weights))
    teacher.model.requires_grad_(False)
    own, other = policy.tokenizer.get_vocab(), teacher.tokenizer.get_vocab()
    if own != other:
        token = min((own.items() ^ other.items()), key=lambda item: item[1])
        raise ValueError(
            f"--teacher.name {config.teacher.name}: its tokenizer is not the policy's ({len(other)} tokens against "
            f"{len(own)}; they differ in {token[0]!r}, id {token[1]}); a teacher must have the policy's tokenizer"
        )
    return teacher

"""The teacher's part of a batch: its prompts, weights and answers, the distillation loss, the metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rlvr.algo.batch import Batch, copy_to
from rlvr.algo.distillation import sampled_reverse_kl
from rlvr.algo.losses import importance_weights, token_log_ratio, token_weights
from rlvr.core.endpoint import PromptLogprobs
from rlvr.core.heartbeat import enter
from rlvr.core.types import PACK, Group
from rlvr.distributed import gather
from rlvr.model.logprobs.comparison import Comparison, TeacherStates, TeacherTop, compare_tokens, teacher_states
from rlvr.model.logprobs.scoring import of_tokens

from ..learner import Learner
from .teacher import Teacher

QUARTERS = ("", "_1", "_2", "_3", "_4")  # of all tokens, and of those in each quarter of a completion
BY_POSITION = ("kl", "agreement", "surer", "entropy", "policy_entropy")
PREFIX = "teacher/"


def consult_teacher(
    learner: Learner, step: int, groups: Sequence[Group], batch: Batch
) -> tuple[Batch, dict[str, float]]:
    """Return a step's batch with the teacher's prompts and weights, and with a served teacher's answers; and metrics.

    groups: those that the batch was collated from. step: from 1. Advantages are multiplied by 1 - w, w the weight of
    the distillation: every policy loss is linear in their size. Raises RunError if a server does not answer.
    """
    teacher = learner.teacher
    assert teacher is not None
    assert batch.places is not None
    rollouts = [(group, place) for group in groups for place in range(len(group.completions))]
    chosen = [rollouts[place] for place in batch.places.tolist()]
    made = {id(group): teacher.prompts_of(learner.policy, group) for group in groups}
    prompts = None
    if teacher.feedback is not None:
        # The teacher also reads tokens of the completion that come before the first trained one (a void turn).
        read = [n - len(group.prompt_ids) for n, (group, _) in zip(batch.prompt_lengths.tolist(), chosen, strict=True)]
        prompts = tuple(
            (*ids, *group.completions[place].token_ids[:n]) if (ids := (made[id(group)] or [])[place]) else ()
            for n, (group, place) in zip(read, chosen)
        )
    packs = [group.problem.info.get(PACK) for group, _ in chosen]
    weights = torch.tensor([teacher.weight_of(pack) for pack in packs])
    told = torch.tensor([prompts is None or bool(prompts[row]) for row in range(len(batch))], dtype=torch.bool)
    rest = copy_to(1 - weights, batch.advantages.device)
    batch = replace(
        batch,
        advantages=batch.advantages * (rest if batch.advantages.dim() == 1 else rest[:, None]),
        teacher_weights=copy_to(weights * told * (1 - teacher.settings.off_policy), batch.mask.device),
        teacher_prompts=prompts,
    )
    if teacher.policy is not None:
        _try_rows(teacher, batch)
    elif len(batch):
        batch = _with_answers(learner, teacher, step, batch)
    return batch, {f"{PREFIX}told": float(told.float().mean())} if prompts is not None and len(batch) else {}


def _try_rows(teacher: Teacher, batch: Batch) -> None:
    """Try the teacher's fast paths for its longest row here, and not in one of several threads."""
    if teacher.policy is not None and teacher.policy.packs and len(batch):
        own = (batch.lengths - batch.prompt_lengths).tolist()
        prompts = map(len, batch.teacher_prompts) if batch.teacher_prompts else batch.prompt_lengths.tolist()
        teacher.policy.trial.packs(max(map(sum, zip(own, prompts))))


def _with_answers(learner: Learner, teacher: Teacher, step: int, batch: Batch) -> Batch:
    """Return the batch with the served teacher's logprobs. The first process sends the requests of all processes."""
    enter("teacher")
    starts, ends = batch.prompt_lengths.tolist(), batch.lengths.tolist()
    prompts = batch.teacher_prompts or [tuple(row[:start]) for row, start in zip(batch.tokens.tolist(), starts)]
    rows = [
        (*prompt, *row[start:end]) if prompt else ()
        for prompt, row, start, end in zip(prompts, batch.tokens.tolist(), starts, ends)
    ]
    answers: list[PromptLogprobs] = []
    if teacher.served is not None:
        answers = teacher.served.score([row for row in rows if row], step)
    left = iter(gather(answers, learner.accelerator))
    logprobs = torch.zeros(batch.tokens.shape)
    k = max(teacher.settings.top_k, 1)
    top_ids = torch.zeros(*batch.tokens.shape, k, dtype=torch.long)
    top = torch.zeros(*batch.tokens.shape, k)
    for number, (row, start, end) in enumerate(zip(rows, starts, ends)):
        if row:
            found, own = next(left), end - start
            logprobs[number, start:end] = torch.tensor(found.logprobs[-own:])
            top_ids[number, start:end] = torch.tensor(found.top_ids[-own:])
            top[number, start:end] = torch.tensor(found.top_logprobs[-own:])
    device = batch.mask.device
    return replace(
        batch,
        teacher_logprobs=copy_to(logprobs, device),
        teacher_top_ids=copy_to(top_ids, device),
        teacher_top_logprobs=copy_to(top, device),
    )


def compare_rows(learner: Learner, micro: Batch) -> Comparison:
    """Return the policy's pass over the rows of a microbatch, compared with the teacher on rows that it teaches."""
    teacher = learner.teacher
    assert teacher is not None
    assert micro.teacher_weights is not None
    knows = micro.teacher_weights.cpu() > 0
    spoken = micro.scored & knows[:, None]
    settings = teacher.settings
    said: TeacherStates | TeacherTop | None = None
    if bool(spoken.any()) and teacher.policy is not None:
        said = teacher_states(teacher.policy, *teacher_rows(micro, spoken))
    elif bool(spoken.any()):
        assert micro.teacher_top_ids is not None
        assert micro.teacher_top_logprobs is not None
        said = TeacherTop(of_tokens(micro.teacher_top_ids, spoken), of_tokens(micro.teacher_top_logprobs, spoken))
    return compare_tokens(
        learner.policy,
        micro.tokens,
        micro.scored,
        spoken,
        said,
        temperature=learner.config.rollout.temperature,
        with_entropy="gradient" if learner.algo.entropy_coef else True,
        beta=settings.beta if settings.token_loss == "js" else None,
        top_k=settings.top_k,
    )


def teacher_rows(micro: Batch, spoken: Tensor) -> tuple[Tensor, Tensor]:
    """Return tokens and mask (b, T') of the rows as the teacher reads them: its prompts, and the same completions."""
    if micro.teacher_prompts is None:
        return micro.tokens, spoken
    starts, ends = micro.prompt_lengths.tolist(), micro.lengths.tolist()
    width = max(len(prompt) + end - start for prompt, start, end in zip(micro.teacher_prompts, starts, ends))
    tokens = micro.tokens.new_zeros(len(micro), width)
    mask = torch.zeros(len(micro), width, dtype=torch.bool)
    for row, (prompt, start, end) in enumerate(zip(micro.teacher_prompts, starts, ends)):
        first, last = len(prompt), len(prompt) + end - start
        tokens[row, :first] = torch.tensor(prompt, dtype=torch.long)
        tokens[row, first:last] = micro.tokens[row, start:end]
        mask[row, first:last] = spoken[row, start:end]
    return tokens, mask


def distillation_loss(
    learner: Learner, found: Comparison, micro: Batch, denominator: float, importance: str
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the weighted loss of a microbatch, a scalar, and the sums over its tokens for the log.

    denominator: that of the policy loss. importance: the kind of importance weights, trainer against sampler.
    """
    teacher, algo = learner.teacher, learner.algo
    assert teacher is not None
    assert micro.teacher_weights is not None
    weights = micro.teacher_weights[:, None]
    spoken = micro.mask & (weights > 0)
    theirs = micro.teacher_logprobs if found.teacher_logprobs is None else found.teacher_logprobs
    assert theirs is not None
    now = found.logprobs.detach()
    if teacher.settings.token_loss == "sampled":
        old = now if micro.old_logprobs is None else micro.old_logprobs
        ratio = token_log_ratio(now, old, micro.mask).exp()
        ratio = ratio * importance_weights(
            old, micro.sampler_logprobs, micro.mask, importance, algo.importance_cap, micro.versions
        )
        per_token = sampled_reverse_kl(found.logprobs, theirs, ratio.clamp(max=teacher.settings.ratio_cap))
    else:
        per_token = found.divergence
    loss = (per_token * weights * token_weights(micro.mask, algo.normalizer, denominator)).sum()
    values = {
        "kl": now - theirs if found.kl is None else found.kl,
        "agreement": found.agreement,
        "surer": (theirs > now).to(now.dtype),
        "entropy": found.teacher_entropy,
        "policy_entropy": None if found.entropy is None else found.entropy.detach(),
    }
    sums = {f"{PREFIX}loss": (per_token.detach() * spoken).sum(), f"{PREFIX}outside": (found.outside * spoken).sum()}
    for suffix, where in zip(QUARTERS, quarters(micro.mask), strict=True):
        at = spoken & where
        sums[f"{PREFIX}tokens{suffix}"] = at.sum()
        sums |= {f"{PREFIX}{name}{suffix}": (v * at).sum() for name, v in values.items() if v is not None}
    return loss, {name: value for name, value in sums.items() if name in teacher_stat_names(teacher)}


def quarters(mask: Tensor) -> list[Tensor]:
    """Return masks (b, T) of all tokens, and of those in each quarter of their row's tokens."""
    place = mask.cumsum(-1) - 1
    quarter = (4 * place) // mask.sum(-1, keepdim=True).clamp(min=1)
    return [torch.ones_like(mask), *(quarter == number for number in range(4))]


def teacher_stat_names(teacher: Teacher) -> list[str]:
    """Return the names of the sums of `distillation_loss`, the same on every process."""
    left_out = () if teacher.policy is not None else ("entropy",)
    named = [f"{name}{suffix}" for name in ("tokens", *BY_POSITION) if name not in left_out for suffix in QUARTERS]
    named += ["loss", *(["outside"] if teacher.settings.top_k else [])]
    return [f"{PREFIX}{name}" for name in named]


def average_teacher(sums: Mapping[str, float], updates: int) -> dict[str, float]:
    """Return means over the tokens that the teacher taught, for some also by quarter; none where there were no tokens.

    The loss on demonstrations is a mean over the updates.
    """
    found = {name: value for name, value in sums.items() if name.startswith(PREFIX)}
    counts = {suffix: found.pop(f"{PREFIX}tokens{suffix}", 0.0) for suffix in QUARTERS}
    means = {}
    for name, value in found.items():
        count = updates if name.endswith("/off_policy_loss") else counts.get(name[-2:], counts[""])
        if count:
            means[name] = value / count
    return means

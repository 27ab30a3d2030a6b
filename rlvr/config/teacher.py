"""The group `teacher`, which exists with algorithms that distil (opd, sdpo)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from rlvr.core.printable import is_plain

from .model import ModelConfig
from .settings import (
    ADVANCED,
    COUNT_OR_NONE,
    POSITIVE,
    POSITIVE_SHARE,
    RESUMABLE,
    SECONDS,
    SHARE,
    WORKERS,
    Bound,
    Group,
    Rules,
    Used,
)

FEEDBACK_PARTS = ("status", "reason", "sibling", "reference")  # what a teacher may be told of a completion


def with_kinds(*kinds: str) -> Used:
    """Return the mark of a setting that some kinds of teachers have."""
    return Used(
        lambda config: config.teacher is not None and config.teacher_kind in kinds,
        f"with --teacher.kind {' or '.join(kinds)}",
    )


def with_loss(name: str) -> Used:
    """Return the mark of a setting that one form of the loss has."""
    return Used(
        lambda config: config.teacher is not None and config.teacher.token_loss == name, f"with --teacher.loss {name}"
    )


WITH_MODEL, WITH_SERVER, WITH_EMA = with_kinds("model", "server"), with_kinds("server"), with_kinds("ema")
WITH_JS, WITH_SAMPLED = with_loss("js"), with_loss("sampled")
WITH_TOLD = Used(lambda config: config.algo.row.tells, "with --algo sdpo")


@dataclass(frozen=True)
class TeacherConfig(Group):
    """The teacher whose next-token distributions the policy learns, on the policy's own rollouts."""

    kind: Literal["auto", "model", "server", "base", "start", "ema", "live"] = "auto"
    """Who teaches. model: another model, in this process; server: one that vLLM serves; base: the policy without its
    LoRA adapter; start: the policy as it began; ema: an exponential average of its weights; live: the policy itself,
    which differs only by the feedback in its prompt (sdpo). auto: model with opd, ema with sdpo."""
    name: Annotated[str | None, WITH_MODEL] = None
    """The teacher's model: a hub name or folder; of a server the name that it serves. Its tokenizer must be the
    policy's."""
    url: Annotated[str | None, WITH_SERVER, RESUMABLE] = None
    """URL of the teacher's server, with /v1."""
    loss: Literal["auto", "js", "sampled"] = "auto"
    """js: gradient of the generalised Jensen-Shannon divergence (GKD) of the whole distributions. sampled: policy
    gradient of the reverse KL, by the log-probabilities of the sampled tokens. auto: js, but sampled with a server
    that is not asked for its top_k."""
    beta: Annotated[float, SHARE, WITH_JS] = 1.0
    """0: forward KL(teacher || policy), mode-covering; 1: reverse KL(policy || teacher), mode-seeking; between: the
    divergences of both from their mixture."""
    top_k: Annotated[int, COUNT_OR_NONE, WITH_JS] = 0
    """Compare the teacher's k likeliest tokens, and all others as one. 0: the whole vocabulary, which no server
    gives."""
    weight: Annotated[float, SHARE] = 1.0
    """Weight w of the distillation: the loss is (1 - w) policy loss + w distillation. 1: no reward is learned from."""
    pack_weight: Annotated[tuple[str, ...], ADVANCED] = ()
    """Other weights for packs of a mixture, as pack=weight."""
    ratio_cap: Annotated[float, POSITIVE, ADVANCED, WITH_SAMPLED] = 2.0
    """Upper bound of the ratio of the present policy to the one that sampled a token (TRL: distillation_is_clip)."""
    off_policy: Annotated[float, Bound(0, 0.99), WITH_JS] = 0.0
    """Share of the distillation that is done on demonstrations, the pack's or those of sft.data, in place of rollouts
    (GKD: 1 - lambda)."""
    tells: Annotated[tuple[str, ...], WITH_TOLD] = ("status", "reason", "sibling")
    """Feedback on a completion in the teacher's prompt. status, reason: those of a verdict that is not correct;
    sibling: a correct completion of the same group; reference: the right answer."""
    template: Annotated[str | None, ADVANCED, WITH_TOLD] = None
    """The teacher's prompt, with {prompt}, {status}, {reason}, {sibling} and {reference}. A paragraph with a
    field that has no value is left out. None: the verifier's own, or the default, which `rlvr show-prompt
    --teacher` shows."""
    rate: Annotated[float, POSITIVE_SHARE, WITH_EMA] = 0.05
    """Share with which the present weights enter the average after each step."""
    requests: Annotated[int, WORKERS, ADVANCED, WITH_SERVER, RESUMABLE] = 16
    """Requests to the server at once."""
    request_seconds: Annotated[float, SECONDS, ADVANCED, WITH_SERVER, RESUMABLE] = 600.0
    """A request fails after so many seconds without a byte of the answer."""
    retry_seconds: Annotated[float, SECONDS, ADVANCED, WITH_SERVER, RESUMABLE] = 300.0
    """How long a failed request is repeated before the run ends."""

    def rules(self, at: str) -> Rules:
        unknown = [word for word in self.tells if word not in FEEDBACK_PARTS]
        return [
            *super().rules(at),
            (self.url is None or is_plain(self.url), f"{at}url {self.url!r}: expected http://HOST:PORT/v1"),
            (not unknown, f"{at}tells {' '.join(unknown)}: expected some of {', '.join(FEEDBACK_PARTS)}"),
            (
                self.template is None or "{prompt}" in self.template,
                f"{at}template without {{prompt}}: the teacher would not see the problem",
            ),
            *(
                (is_share(item), f"{at}pack_weight {item!r}: expected pack=weight, from 0 to 1")
                for item in self.pack_weight
            ),
        ]

    def model_beside(self, policy: ModelConfig) -> ModelConfig:
        """Return the settings of another model that teaches a policy in its process."""
        assert self.name is not None
        fields = ("device", "dtype", "attention", "trust_remote_code")
        return ModelConfig(name=self.name, **{field: getattr(policy, field) for field in fields})

    @property
    def token_loss(self) -> str:
        """Return `loss` with auto resolved."""
        if self.loss != "auto":
            return self.loss
        return "sampled" if self.kind == "server" and not self.top_k else "js"

    @property
    def weights_of_packs(self) -> dict[str, float]:
        """Return `pack_weight` as numbers by pack."""
        return {name: float(weight) for name, _, weight in (item.partition("=") for item in self.pack_weight)}

    @property
    def largest_weight(self) -> float:
        return max([self.weight, *self.weights_of_packs.values()])


def is_share(item: str) -> bool:
    name, _, weight = item.partition("=")
    try:
        return bool(name) and math.isfinite(float(weight)) and 0 <= float(weight) <= 1
    except ValueError:
        return False

"""The verifier `reward_model`: a learned model's score of a whole text as the reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rlvr.core.types import Verdict

from .learned import Learned

if TYPE_CHECKING:
    from .loading import LoadedRewardModel
    from .text import Encoded


@dataclass(frozen=True, kw_only=True)
class RewardModel(Learned):
    """The score of a sequence-classification model (hub or folder), on the trainer's device or behind a server.

    model: hub name or folder, adapters included; with url it still provides the tokenizer. revision: branch, tag or
    commit of a hub model. trust_remote_code: run the Python code that comes with a model.

    url: a vLLM server (http://host:port) whose /classify scores instead of this process. timeout: seconds for a request
    of batch_size texts. retries: further attempts after a failed request.

    device, dtype: as the policy's. placement: beside keeps the weights beside the policy, offload moves them to the CPU
    between calls. batch_size: texts in one forward pass.

    chat, system_prompt: how prompt and completion are rendered. Default: as `rlvr rm` recorded it, else by the
    tokenizer's chat template, else as prompt, completion and end token. max_tokens: longer texts lose their beginning
    (0: the model's limit), and the verdict's reason says so.

    mean, std: the score is (log-odds - mean) / std. Default: those that `rlvr rm` measured on held-out completions,
    else 0 and 1. label: the label to score, for a model with several.

    threshold: a score of at least this is correct, others are incorrect. Without it every verdict is partial, so that
    pass@k never counts a model's opinion. A score that is not finite and a server that fails give error verdicts. The
    first call raises RunError where the model or the server cannot be used at all.
    """

    NAME: ClassVar = "reward_model"

    url: str | None = None
    timeout: float = 60.0
    retries: int = 1
    mean: float | None = None
    std: float | None = None
    label: str | None = None

    def rules(self) -> list[tuple[bool, str]]:
        return [
            (self.timeout > 0, f"timeout {self.timeout}: expected seconds above 0"),
            (self.retries >= 0, f"retries {self.retries}: expected at least 0"),
            (self.std is None or self.std > 0, f"std {self.std}: expected a number above 0"),
        ]

    @property
    def whole_batch(self) -> bool:
        """True in this process, where a score's rounding depends on its batch: callers must not cut one."""
        return self.url is None

    def _load(self) -> LoadedRewardModel:
        from .loading import Server, load_reward_model

        server = None if self.url is None else Server(self.url, self.timeout, self.retries, self.batch_size)
        return load_reward_model(self, server, label=self.label, mean=self.mean, std=self.std)

    def _verdict(self, log_odds: tuple[float, ...], text: Encoded, loaded: LoadedRewardModel) -> Verdict:
        reason = f"its first {text.cut} tokens were cut" if text.cut else ""
        return self._grade((log_odds[0] - loaded.mean) / loaded.std, reason)

"""The verifier `reward_model`: a learned model's score as the reward. torch is imported with the first score."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rlvr.core.types import Prompt, Status, Verdict, error
from rlvr.reward_model.learned import Learned, check_options, common_rules, folder_rule

if TYPE_CHECKING:
    from rlvr.reward_model.loading import LoadedRewardModel
    from rlvr.reward_model.text import Encoded

Reduce = Literal["min", "product", "last"]


@dataclass(frozen=True, kw_only=True)
class RewardModel(Learned):
    """The score of a sequence-classification model (hub or folder), on the trainer's device or behind a server.

    model: hub name or folder, adapters included; with url it still provides the tokenizer. revision: branch, tag or
    commit of a hub model; trust_remote_code: run the Python code that comes with a model.

    url: a vLLM server (http://host:port) that scores instead of this process; route: its /classify (token ids travel),
    or its /score (prompt and completion travel, the server joins them). timeout: seconds for a request of batch_size
    texts; retries: further attempts after a failed request.

    device, dtype: as the policy's. placement: keep the weights beside the policy, or offload them to the CPU between
    calls. batch_size: texts in one forward pass. padding: left, right, or the tokenizer's own side.

    chat, system_prompt: how prompt and completion are rendered; by default as `rlvr rm` recorded it, else by the
    tokenizer's chat template, else (without a template) as prompt, completion and end token. max_tokens: longer texts
    lose their beginning (0: the model's limit), and the verdict's reason says so.

    mean, std: the score is (log-odds - mean) / std; by default those that `rlvr rm` measured on held-out completions,
    else 0 and 1. label: the label to score, for a model with several. separator: for a process reward model, the text
    that ends each step; reduce: how the steps' probabilities become one score (min, product or last).

    threshold: scores of at least this are correct, others incorrect; without it every verdict is partial, so that
    pass@k never counts a model's opinion. A score that is not finite and a server that fails give error verdicts; the
    first call raises RunError where the model or the server cannot be used at all.
    """

    model: str = ""
    revision: str | None = None
    trust_remote_code: bool = False
    url: str | None = None
    route: Literal["classify", "score"] = "classify"
    timeout: float = 60.0
    retries: int = 1
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    placement: Literal["beside", "offload"] = "beside"
    batch_size: int = 64
    padding: Literal["auto", "left", "right"] = "auto"
    chat: Literal["auto", "always", "never"] = "auto"
    system_prompt: str | None = None
    max_tokens: int = 0
    mean: float | None = None
    std: float | None = None
    label: str | None = None
    separator: str = ""
    reduce: Reduce = "min"
    threshold: float | None = None

    def __post_init__(self) -> None:
        rules = [
            (bool(self.model), "model: name a hub model or a folder (with url too, for its tokenizer)"),
            *common_rules(self),
            (self.timeout > 0, f"timeout {self.timeout}: expected seconds above 0"),
            (self.retries >= 0, f"retries {self.retries}: expected at least 0"),
            (self.std is None or self.std > 0, f"std {self.std}: expected a number above 0"),
            (not (self.separator and self.url), "separator: a server cannot score steps; leave out url"),
            (self.url is not None or self.route == "classify", "route score: only a server has it; give its url"),
            folder_rule(self.model, "; `rlvr rm` trains one"),
        ]
        check_options("reward_model", rules)
        super().__post_init__()

    @property
    def whole_batch(self) -> bool:
        """True in this process, where a score's rounding depends on its batch: callers must not cut one."""
        return self.url is None

    def _load(self) -> LoadedRewardModel:
        from rlvr.reward_model.loading import load_reward_model

        return load_reward_model(self)

    def _encode(self, loaded: LoadedRewardModel, prompt: Prompt, completion: str) -> Encoded:
        if self.separator:
            return loaded.renderer.encode_steps(prompt, completion, self.separator)
        return loaded.renderer.encode(prompt, completion)

    def _verdict(self, scored: tuple[float, ...] | str, text: Encoded | str, loaded: LoadedRewardModel) -> Verdict:
        if isinstance(scored, str) or isinstance(text, str):
            return error(str(scored))
        if not all(map(math.isfinite, scored)):
            return error(f"the reward model gave {next(s for s in scored if not math.isfinite(s))}")
        value = REDUCE[self.reduce]([sigmoid(s) for s in scored]) if self.separator else scored[0]
        score = (value - loaded.mean) / loaded.std
        reason = f"its first {text.cut} tokens were cut" if text.cut else ""
        if self.threshold is None:
            return Verdict(Status.PARTIAL, score, reason)
        return Verdict(Status.CORRECT if score >= self.threshold else Status.INCORRECT, score, reason)


REDUCE: dict[str, Any] = {"min": min, "product": math.prod, "last": lambda probabilities: probabilities[-1]}


def sigmoid(x: float) -> float:
    """Return 1 / (1 + exp(-x)), without overflow for any x."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))

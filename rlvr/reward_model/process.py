"""The verifier `process_reward_model`: a model's scores of a completion's steps, as process rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rlvr.core.types import Prompt, Status, Verdict, error, no_answer
from rlvr.reward_model import REDUCE, Reduce, sigmoid
from rlvr.reward_model.learned import Learned, check_options, common_rules, folder_rule

if TYPE_CHECKING:
    from rlvr.reward_model.process_loading import LoadedProcessModel
    from rlvr.reward_model.text import Encoded, Steps

SHOWN = 8  # probabilities in a verdict's reason


@dataclass(frozen=True, kw_only=True)
class ProcessRewardModel(Learned):
    """The scores of a completion's steps by a process reward model (hub or folder), on the trainer's device.

    Behind each step a tag is put, and the model says there how probable it is that the step is right. form: head, a
    classifier of tokens (Qwen2.5-Math-PRM: `<extra_0>`, the second of two classes); tokens, a language model that
    answers with one of two tokens (Math-Shepherd: + and - behind `ки`); auto: by the model's architecture.

    model, revision, trust_remote_code, device, dtype, placement, batch_size, padding: as of reward_model. chat,
    system_prompt: how prompt and steps are rendered; auto: by the chat template for a head, as text for tokens.
    separator: the text between two steps of a completion; by default a blank line. tag: the mark behind a step; by
    default the form's own. good, bad: the two answers of the form tokens. max_tokens: longer texts get `limit`, for a
    step cannot be judged without those before it (0: the model's limit).

    The score is all steps' probabilities as one: the lowest, their product, or the last (reduce). The verdict's steps
    share it out, and add up to 0: each but the last has what it changed of the score so far, so that with
    `algo.credit step` a step is credited with that and with what follows it. threshold: scores of at least this are
    correct, others incorrect; without it every verdict is partial.
    """

    model: str = ""
    revision: str | None = None
    trust_remote_code: bool = False
    form: Literal["auto", "head", "tokens"] = "auto"
    separator: str = "\n\n"
    tag: str | None = None
    good: str = "+"
    bad: str = "-"
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    placement: Literal["beside", "offload"] = "beside"
    batch_size: int = 64
    padding: Literal["auto", "left", "right"] = "auto"
    chat: Literal["auto", "always", "never"] = "auto"
    system_prompt: str | None = None
    max_tokens: int = 0
    reduce: Reduce = "min"
    threshold: float | None = None

    def __post_init__(self) -> None:
        rules = [
            (bool(self.model), "model: name a hub model or a folder"),
            *common_rules(self),
            (bool(self.separator), "separator: expected the text between two steps"),
            (self.tag is None or bool(self.tag.strip()), f"tag {self.tag!r}: expected the mark behind a step"),
            (self.good != self.bad, f"good and bad {self.good!r}: expected two different answers"),
            folder_rule(self.model, ""),
        ]
        check_options("process_reward_model", rules)
        super().__post_init__()

    def _load(self) -> LoadedProcessModel:
        from rlvr.reward_model.process_loading import load_process_model

        return load_process_model(self)

    def _encode(self, loaded: LoadedProcessModel, prompt: Prompt, completion: str) -> Steps:
        return loaded.renderer.encode(prompt, completion)

    def _verdict(self, scored: tuple[float, ...] | str, text: Encoded | str, loaded: LoadedProcessModel) -> Verdict:
        if isinstance(scored, str) or isinstance(text, str):
            return error(str(scored))
        if text.cut:
            return Verdict(Status.LIMIT, 0.0, f"{text.cut} tokens more than the process reward model reads")
        if not scored:
            return no_answer("no step")
        if not all(map(math.isfinite, scored)):
            return error(f"the process reward model gave {next(s for s in scored if not math.isfinite(s))}")
        probabilities = [sigmoid(value) for value in scored]
        score, steps = shared_out(probabilities, text.ends, self.reduce)  # type: ignore[attr-defined]
        shown = ", ".join(f"{p:.3f}" for p in probabilities[:SHOWN])
        more = f" and {len(probabilities) - SHOWN} more" if len(probabilities) > SHOWN else ""
        reason = f"steps: {shown}{more}"
        if self.threshold is None:
            return Verdict(Status.PARTIAL, score, reason, steps=steps)
        status = Status.CORRECT if score >= self.threshold else Status.INCORRECT
        return Verdict(status, score, reason, steps=steps)


def shared_out(
    probabilities: Sequence[float], ends: Sequence[int], reduce: Reduce
) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Return the score of all steps, and (end, reward) of each, which add up to 0.

    A step but the last has the change of the score of the steps so far (0 before the first). The last has what makes
    the sum 0: with the score, which comes there too, it has the change that is its own.
    """
    so_far = [REDUCE[reduce](probabilities[: k + 1]) for k in range(len(probabilities))]
    changes = [after - before for before, after in zip([0.0, *so_far], so_far[:-1])]
    return so_far[-1], tuple(zip(ends, [*changes, -math.fsum(changes)], strict=True))

"""The verifier `process_reward_model`: a model's scores of a completion's steps, as process rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rlvr.core.types import Status, Verdict, no_answer

from .learned import Learned

if TYPE_CHECKING:
    from .loading import LoadedRewardModel
    from .text import Encoded

Reduce = Literal["min", "product", "last"]
REDUCE: dict[str, Any] = {"min": min, "product": math.prod, "last": lambda probabilities: probabilities[-1]}
SHOWN_PROBABILITIES = 8  # probabilities in a verdict's reason


@dataclass(frozen=True, kw_only=True)
class ProcessRewardModel(Learned):
    """The scores of a completion's steps by a process reward model (hub or folder), on the trainer's device.

    Behind each step a tag is put, and the model says there how probable it is that the step is right. form: head, a
    classifier of tokens (Qwen2.5-Math-PRM: `<extra_0>`, the second of two classes); tokens, a language model that
    answers with one of two tokens (Math-Shepherd: + and - behind `ки`); auto, by the model's architecture.

    model, revision, trust_remote_code, device, dtype, placement, batch_size: as of reward_model. chat,
    system_prompt: how prompt and steps are rendered; auto: by the chat template for a head, as text for tokens.
    separator: the text between two steps, by default a blank line. tag: the mark behind a step, by default the form's
    own. good, bad: the two answers of the form tokens. max_tokens (0: the model's limit): a longer text gets `limit`,
    because a step cannot be judged without those before it.

    The score joins the probabilities of all steps: the lowest, their product, or the last (reduce). The verdict's steps
    share this score out and add up to 0. Each step but the last has the change that it made to the score so far, so
    that `algo.credit step` credits a step with its own change and with what follows. threshold: a score of at least
    this is correct, others are incorrect; without it every verdict is partial.
    """

    NAME: ClassVar = "process_reward_model"

    form: Literal["auto", "head", "tokens"] = "auto"
    separator: str = "\n\n"
    tag: str | None = None
    good: str = "+"
    bad: str = "-"
    reduce: Reduce = "min"

    def rules(self) -> list[tuple[bool, str]]:
        return [
            (bool(self.separator), "separator: expected the text between two steps"),
            (self.tag is None or bool(self.tag.strip()), f"tag {self.tag!r}: expected the mark behind a step"),
            (self.good != self.bad, f"good and bad {self.good!r}: expected two different answers"),
        ]

    def _load(self) -> LoadedRewardModel:
        from .loading import load_process_model

        return load_process_model(
            self, form=self.form, tag=self.tag, separator=self.separator, answers=(self.good, self.bad)
        )

    def _verdict(self, log_odds: tuple[float, ...], text: Encoded, loaded: LoadedRewardModel) -> Verdict:
        if text.cut:
            return Verdict(Status.LIMIT, 0.0, f"{text.cut} tokens more than the process reward model reads")
        if not log_odds:
            return no_answer("no step")
        probabilities = [sigmoid(value) for value in log_odds]
        score, steps = share_out(probabilities, text.ends, self.reduce)
        shown = ", ".join(f"{p:.3f}" for p in probabilities[:SHOWN_PROBABILITIES])
        more = (
            f" and {len(probabilities) - SHOWN_PROBABILITIES} more" if len(probabilities) > SHOWN_PROBABILITIES else ""
        )
        return self._grade(score, f"steps: {shown}{more}", steps)


def share_out(
    probabilities: Sequence[float], ends: Sequence[int], reduce: Reduce
) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Return the score of all steps, and (end, reward) of each step. The rewards add up to 0.

    Each step but the last has the change of the score so far (0 before the first). The last step has what makes the sum
    0: together with the score, which is paid there too, that is the change which the last step made.
    """
    so_far = [REDUCE[reduce](probabilities[: k + 1]) for k in range(len(probabilities))]
    changes = [after - before for before, after in zip([0.0, *so_far], so_far[:-1])]
    return so_far[-1], tuple(zip(ends, [*changes, -math.fsum(changes)], strict=True))


def sigmoid(x: float) -> float:
    """Return 1 / (1 + exp(-x)), without overflow for any x."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))

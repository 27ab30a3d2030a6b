"""Settings of the group `rollout`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rlvr.config.group import ADVANCED, Rules, Used
from rlvr.config.quantities import COUNT, COUNT_OR_NONE, SHARE, WEIGHT
from rlvr.config.shared import SamplingSettings, TurnSettings, VerifierSettings

WITH_PENALTY = Used(lambda config: config.rollout.truncated == "penalize", "with --rollout.truncated penalize")


@dataclass(frozen=True)
class RolloutConfig(TurnSettings, VerifierSettings, SamplingSettings):
    """Sampling and verification of the completions that are trained on."""

    problems_per_step: Annotated[int, COUNT] = 16
    """Problems (prompts) per step."""
    group_size: Annotated[int, COUNT] = 8
    """Completions sampled per problem."""
    resample_rounds: Annotated[int, COUNT_OR_NONE] = 0
    """Dynamic sampling (DAPO): maximum extra sampling rounds to replace groups whose rewards are all equal. 0: off."""
    truncated: Literal["keep", "mask", "penalize"] = "keep"
    """Completions cut off at max_new_tokens, or at the context's end: keep them with their scores, mask them, or
    penalize them (DAPO's soft overlong punishment). Masked ones are not trained on and do not count in their group's
    baseline, as if they had not been sampled; nothing is then learned about ending in time."""
    overlong_buffer: Annotated[int, COUNT_OR_NONE, WITH_PENALTY] = 64
    """Number of tokens before the limit over which the penalty grows from 0 to -1."""
    length_penalty: Annotated[float, WEIGHT, ADVANCED] = 0.0
    """Reward subtracted for each token beyond length_limit."""
    length_limit: Annotated[int, COUNT_OR_NONE, ADVANCED] = 0
    """Completion length in tokens up to which length_penalty subtracts nothing."""
    mask_void: Annotated[bool, ADVANCED] = False
    """With an environment: do not train on turns that it calls void, which held neither a call nor an answer. Their
    rollouts count in the baseline all the same."""
    error_budget: Annotated[float, SHARE, ADVANCED] = 0.02
    """Fraction of verdicts that may be verifier errors (statuses bad_reference and error) before the run stops."""

    def rules(self, at: str) -> Rules:
        """Return rules about lengths that must fit each other, and groups that can be resampled."""
        return [
            *super().rules(at),
            (
                self.group_size >= 2 or self.resample_rounds == 0,
                f"{at}resample_rounds {self.resample_rounds} with {at}group_size 1: a group of one never has differing "
                f"rewards, so resampling cannot help; set {at}resample_rounds to 0",
            ),
            (
                self.truncated != "penalize" or 0 < self.overlong_buffer <= self.max_new_tokens,
                f"{at}overlong_buffer {self.overlong_buffer}: expected 1 to max_new_tokens ({self.max_new_tokens})",
            ),
            (
                self.length_limit < self.max_new_tokens and (self.length_penalty > 0 or not self.length_limit),
                f"{at}length_limit {self.length_limit}: expected 0 to max_new_tokens - 1 ({self.max_new_tokens - 1}), "
                f"and {at}length_penalty above 0 to go with it",
            ),
        ]

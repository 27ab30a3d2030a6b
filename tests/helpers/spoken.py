"""Rollouts of several turns in which the model says given texts."""

from __future__ import annotations

from rlvr.config import ModelConfig
from rlvr.core.types import Ask, Completion, Environment, Group, Reply, Sampler
from rlvr.model.load.policy import Policy, load_policy
from rlvr.sampling.torch_sampler import TorchSampler
from tests.helpers.turn_rows import PROBLEMS, completions, play_rows


def talking_policy() -> Policy:
    """Return a tiny model whose tokens are characters of sums, of the parts of special tokens, and a few letters."""
    return load_policy(ModelConfig(name="tiny", device="cpu"), corpus=["0123456789+=<eos>? []morechats\n"], seed=0)


class Says(Sampler):
    """Says the same texts in turn, one token for each character and an end token, and keeps what was asked."""

    def __init__(self, policy: Policy, *texts: str) -> None:
        self.policy, self.texts = policy, texts
        self.asked: list[Ask] = []

    def generate(self, prompts, sampling, seeds):
        made = []
        for prompt, row in zip(prompts, seeds, strict=True):
            text = self.texts[sum(ask.context[:1] == tuple(prompt[:1]) for ask in self.asked) % len(self.texts)]
            self.asked += [Ask(tuple(prompt), sampling, seed) for seed in row]
            ids = (*self.policy.encode(text), self.policy.eos_id)[: sampling.max_new_tokens]
            ended = ids[-1] == self.policy.eos_id
            made.append([Completion(text, ids, (-1.0,) * len(ids), "stop" if ended else "length") for _ in row])
        return made

    def load_weights(self, policy) -> None:
        return


def played(policy: Policy, environment: Environment, *, sampler: Sampler | None = None, **options) -> list[Group]:
    """Return the groups of `play_rows`; by default of the torch sampler."""
    return play_rows(policy, sampler or TorchSampler(policy), environment, **options)


def one(policy: Policy, environment: Environment, *texts: str, **options) -> Completion:
    """A rollout in which the model says these texts in turn."""
    sampler = Says(policy, *texts)
    (made,) = completions(played(policy, environment, sampler=sampler, problems=PROBLEMS[:1], group_size=1, **options))
    return made


def forever(problem, rng):
    said = yield
    while True:
        said = yield Reply(f"{len(said)}?", reward=0.5, void=said == "0")

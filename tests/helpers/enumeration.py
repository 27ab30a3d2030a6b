"""All completions of a short run (tests.helpers.runs) with their probabilities: expectations are sums."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from rlvr.algo.batch import Batch
from rlvr.core.types import Completion, Group, Problem, incorrect
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.training.run import Run
from tests.helpers.runs import SHORT_LENGTH as LENGTH
from tests.helpers.runs import SHORT_PROMPT as PROMPT


def whole_group(run: Run) -> Group:
    """All completions of the prompt, as one group."""
    vocabulary, ends = range(len(run.learner.policy.tokenizer)), run.learner.policy.eos_ids
    texts = [
        ids
        for n in range(1, LENGTH + 1)
        for ids in itertools.product(vocabulary, repeat=n)
        if not ends & set(ids[:-1]) and (n == LENGTH or ids[-1] in ends)
    ]
    completions = tuple(Completion("", ids, (0.0,) * len(ids)) for ids in texts)
    prompt = tuple(run.learner.policy.render(PROMPT))
    return Group(Problem("0", PROMPT), prompt, completions, (incorrect(),) * len(texts))


def gradient(run: Run, value: Tensor) -> Tensor:
    """Of a scalar, in all weights."""
    return torch.cat([part.reshape(-1) for part in torch.autograd.grad(value, run.learner.policy.parameters())])


def probabilities(run: Run, batch: Batch) -> Tensor:
    with torch.no_grad():
        found = token_logprobs(run.learner.policy, batch.tokens, batch.mask)[0].sum(-1).exp()
    assert float(found.sum()) == pytest.approx(1.0, abs=1e-5)
    return found


def cosine(one: Tensor, other: Tensor) -> float:
    return float(cosine_similarity(one, other, dim=0))

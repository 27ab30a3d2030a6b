"""Algorithms and losses: the tables of rlvr/algo, with the formulas that the functions' docstrings state."""

from __future__ import annotations

import inspect
import re

from rlvr.algo.advantages import SCALES, gdpo
from rlvr.algo.algorithms import ALGORITHMS, Algorithm
from rlvr.algo.distillation import generalized_js, sampled_reverse_kl
from rlvr.algo.losses import KL, LOSSES, Loss

from .markdown import page, plain, sentence, table

INTRODUCTION = """
`--algo NAME` chooses an algorithm. It is a row of `rlvr.algo.algorithms.ALGORITHMS`: the trainer reads what
distinguishes an algorithm from its row, never from its name. r is the reward of a completion, A its advantage; mean
and std are those of its group (the G completions of one problem).
"""
LOSS_TEXT = """
Per token, before the normaliser (`--algo.normalize`). ratio is the policy's probability of a token over that of the
policy that sampled it; some losses use the ratio of the whole completion. `--algo.loss` replaces an algorithm's own
loss.
"""
DISTILLATION_TEXT = """
`opd` and `sdpo` add it to the policy loss, normalised alike. pi and teacher are next-token distributions given the
sampled tokens before; the teacher of `sdpo` reads a prompt of its own ([how](../how-to/distillation.md)).
"""
DISTILLATIONS = {"sampled": sampled_reverse_kl, "js": generalized_js}
KL_TEXT = """
d = log pi - log ref of a token. `--algo.kl-coef` is the weight, `--algo.kl-in` says whether the term stands in the
loss or in the reward, `--algo.kl-estimator` which estimator is used.
"""
RATIOS = {
    "token": "of the token",
    "mean": "geometric mean over the completion",
    "sum": "of the completion",
    None: "none",
}


def pages() -> dict[str, str]:
    """Return the page of the algorithms."""
    algorithms = table(
        ["name", "advantage", "loss", "trained on", "needs", "source"],
        (algorithm_row(row) for row in ALGORITHMS.values()),
    )
    losses = table(
        ["name", "per token", "ratio", "normalised by", "settings", "source"], map(loss_row, LOSSES.values())
    )
    distillations = table(
        ["`--teacher.loss`", "per token"],
        ([f"`{name}`", link_sources(function.__doc__)] for name, function in DISTILLATIONS.items()),
    )
    estimators = table(
        ["name", "value"], ([f"`{name}`", link_sources(function.__doc__)] for name, function in KL.items())
    )
    scales = table(["name", "advantages of the batch"], ([f"`{name}`", scale(name)] for name in SCALES))
    return {
        "algorithms.md": page(
            "Algorithms, losses and KL estimators", INTRODUCTION, algorithms, "## Losses", LOSS_TEXT, losses,
            "## Distillation", DISTILLATION_TEXT, distillations,
            "## KL estimators", KL_TEXT, estimators, "## Scaling over the batch", "`--algo.advantage-scale`:", scales,
        )
    }  # fmt: skip


def algorithm_row(row: Algorithm) -> list[str]:
    """Return an algorithm as a row."""
    rule = gdpo if row.advantages is None else row.advantages
    needs = [
        *(["a critic"] if row.critic else []),
        *(["a reference policy"] if row.reference else []),
        *(["several completions of a problem"] if row.group_relative else []),
        *(["named parts of the reward"] if row.reads_parts else []),
        *(["a teacher"] if row.teachers else []),
    ]
    scaled = "" if row.scale == "none" else f"; scaled: {row.scale}"
    per_token = "; a value for each token by GAE" if row.critic else "; returns per token" if row.token_returns else ""
    trained = {"signal": "groups with a signal", "all": "every group", "chosen": "chosen completions"}[row.trains_on]
    beside = "; (1 - w) of it beside w of the distillation" if row.teachers else ""
    return [
        f"`{row.name}`",
        formula(rule) + scaled + per_token + beside,
        f"`{row.loss}`",
        trained,
        ", ".join(needs),
        paper(row.paper),
    ]


def formula(rule: object) -> str:
    """Return the formula that a rule's docstring states."""
    return plain(sentence(re.sub(r" \([^()]*arXiv[^()]*\)", "", inspect.getdoc(rule) or "")))


def loss_row(row: Loss) -> list[str]:
    """Return a loss as a row."""
    settings = " ".join(f"`--algo.{name.replace('_', '-')}`" for name in row.settings)
    return [f"`{row.name}`", formula(row.function), RATIOS[row.ratio], row.normalize, settings, paper(row.paper)]


def link_sources(text: str | None) -> str:
    """Return the first paragraph of a docstring."""
    return plain((text or "").split("\n\n")[0].removeprefix("Return "))


def scale(name: str) -> str:
    """Return what a scaling does."""
    return "as they are" if name == "none" else formula(SCALES[name])


def paper(text: str) -> str:
    """Return a paper's name, with a link where it has a number."""
    return re.sub(r"arXiv:(\d+\.\d+)", r"[arXiv:\1](https://arxiv.org/abs/\1)", text)

"""How far the published normalisations of turn rewards are from the gradient of the expected return, and what varies.

Takes about 9 seconds on two cores.

All outcomes of a toy with episodes of one to three turns (tests/helpers/turns_toy.py) are enumerated, in float64, for
groups of each size. error: |mean of the estimates - gradient| / |gradient|. direction: the same for the multiple of the
gradient that is nearest, so that it is 0 for an estimate that is only longer or shorter. variance: of the estimate,
summed over its entries, by the square of its mean.

    python benchmarks/credit.py
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rlvr.algo import advantages as rules
from rlvr.algo.advantages import BatchRule
from rlvr.algo.algorithms import per_group
from rlvr.algo.credit import Steps, step_advantages

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.helpers.turns_toy import Estimator, grpo_outcome, mean_estimate, mt_grpo, true_gradient


def turn_credit(rule: BatchRule) -> Estimator:
    """Return the estimator that algo.credit turn makes of a rule."""
    return lambda group: [
        list(a.values) for a in step_advantages([[e.steps for e in group]], rule)[0] if isinstance(a, Steps)
    ]


ESTIMATORS: dict[str, Estimator] = {
    "RLOO, whole rollouts": lambda group: [
        [a] * len(e.rewards) for e, a in zip(group, rules.rloo([sum(e.rewards) for e in group]), strict=True)
    ],
    "RLOO, credit per turn": turn_credit(per_group(rules.rloo)),
    "GRPO, whole rollouts": grpo_outcome,
    "GRPO, in each turn": turn_credit(per_group(rules.grpo)),
    "MT-GRPO": mt_grpo,
}


def main() -> None:
    """Print a table for groups of two, three and four."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[2, 3, 4])
    gradient = true_gradient()
    for size in parser.parse_args().sizes:
        for name, estimator in ESTIMATORS.items():
            mean, variance = mean_estimate(estimator, size)
            along = (mean @ gradient) / gradient.square().sum() * gradient
            error, direction = (mean - gradient).norm() / gradient.norm(), (mean - along).norm() / mean.norm()
            spread = variance / float(mean.square().sum())
            print(f"groups of {size}  {name:24} error {error:8.1e}  direction {direction:8.1e}  variance {spread:5.2f}")


if __name__ == "__main__":
    main()

"""The metrics of a step: each name of metrics.jsonl with its unit, its meaning, and what a healthy run shows.

A name that ends with `*` stands for all that begin with what is before it. A metric that a run logs is here:
tests/runs/test_metrics.py trains and looks.
"""

from __future__ import annotations

from dataclasses import dataclass

SHARE, TOKENS, COUNT, SECONDS, NATS = "share", "tokens", "count", "seconds", "nats per token"
SCORE = "score"


@dataclass(frozen=True)
class Metric:
    """A row of METRICS. healthy: what it does in a run that learns, "" where no value is better than another."""

    name: str
    unit: str
    meaning: str
    healthy: str = ""

    def matches(self, name: str) -> bool:
        """Return whether a logged name is this metric."""
        return name.startswith(self.name[:-1]) if self.name.endswith("*") else name == self.name


ALL = (
    Metric("step", COUNT, "the step, from 1"),
    Metric("reward", SCORE, "mean score of all rollouts that have one", "rises, with noise of the drawn problems"),
    Metric("correct", SHARE, "rollouts whose verdict is `correct`", "rises; compare runs by held-out pass@k"),
    Metric(
        "no_signal",
        SHARE,
        "groups whose advantages are all 0: every completion scored the same",
        "below .8; near 1 nothing is learned: other problems, more completions, or dynamic sampling",
    ),
    Metric("truncated", SHARE, "rollouts that a limit of tokens ended", "falls or stays low"),
    Metric("unscored", SHARE, "rollouts without a score, because verifier or reference failed", "0"),
    Metric("status/*", SHARE, "rollouts with each status", "`no_answer` and `unparseable` fall early"),
    Metric("parts/*", SCORE, "mean of each named part of the reward, and of the penalties in use"),
    Metric("completion_tokens", TOKENS, "mean length of a completion", "changes slowly"),
    Metric("rollout_tokens", TOKENS, "sampled tokens of the step"),
    Metric("trained_tokens", TOKENS, "tokens of the step's updates that were computed, all epochs together"),
    Metric("tokens_per_second", "tokens per second", "sampled tokens over the duration of the step", "steady"),
    Metric("seconds/*", SECONDS, "time of each phase: sample, verify, train, wait, monitor", "steady"),
    Metric("staleness", COUNT, "steps between the weights that sampled and those that are trained"),
)
UPDATE = (
    Metric("lr", "", "learning rate that the step used, after warm-up, decay and rollbacks"),
    Metric("loss", "", "mean loss of the updates; its value says little, since advantages are centred"),
    Metric("grad_norm", "", "gradient norm before clipping, mean over the updates", "steady, without jumps"),
    Metric(
        "skipped_updates",
        COUNT,
        "updates that were skipped for a gradient that is NaN or infinite",
        "0; three steps in a row end the run",
    ),
    Metric("entropy", NATS, "mean entropy of the policy's next-token distributions", "falls slowly, not to 0"),
    Metric("kl", NATS, "estimate of the KL divergence from the reference policy", "grows slowly and levels off"),
    Metric("kl_coef", "", "weight of the KL term, where it adapts"),
    Metric("entropy_coef", "", "weight of the entropy bonus, where it adapts"),
    Metric("clip_low", SHARE, "tokens with A < 0 whose ratio is below 1 - clip_low", "0 with one update a step"),
    Metric("clip_high", SHARE, "tokens with A > 0 whose ratio is above 1 + clip_high", "0 with one update a step"),
    Metric("clip_fraction", SHARE, "the sum of both", "below .2"),
    Metric("update_kl", NATS, "how far the step moved the policy, by KL divergence", "below `--optim.max-update-kl`"),
    Metric("left_out_updates", COUNT, "updates left out because the earlier ones moved the policy too far", "0"),
    Metric("importance", "", "mean weight of trainer against sampler", "near 1"),
    Metric("importance_clipped", SHARE, "tokens whose weight was capped or masked", "near 0"),
    Metric("mismatch/mean", NATS, "mean |log pi_trainer - log pi_sampler| at equal weights", "0, or .01 in bfloat16"),
    Metric("mismatch/max", NATS, "largest such difference of the step", "below 1"),
    Metric("mismatch/ratio_*", "", "quantiles of the ratio pi_trainer / pi_sampler: p01, p50, p99", "p50 near 1"),
    Metric("mismatch/effective_samples", SHARE, "effective sample size of these ratios", "near 1"),
    Metric("ptx/loss", NATS, "loss of the pretraining mix", "steady"),
)  # fmt: skip
CRITIC = (
    Metric("critic/value", SCORE, "mean predicted value of a token"),
    Metric("critic/return", SCORE, "mean return of a token"),
    Metric(
        "critic/explained_variance", "", "1 - Var(return - value) / Var(return), before the updates", "rises above 0"
    ),
    Metric("critic/value_loss", "", "mean value loss", "falls, then stays"),
    Metric("critic/value_clipped", SHARE, "tokens whose value was clipped", "low"),
    Metric("critic/grad_norm", "", "gradient norm of the critic before clipping", "steady"),
    Metric("critic/skipped_updates", COUNT, "skipped updates of the critic", "0"),
)
PREFERENCE = (
    Metric("dpo/margin", NATS, "mean of beta times the difference of log pi/ref of chosen and rejected", "rises"),
    Metric("dpo/accuracy", SHARE, "pairs whose margin is positive", "rises above .5"),
    Metric("dpo/chosen", NATS, "mean implicit reward of the chosen ones"),
    Metric("dpo/rejected", NATS, "mean implicit reward of the rejected ones", "falls"),
    Metric("kto/good", SHARE, "rollouts that are labelled good"),
    Metric("kto/kl", NATS, "estimate of the KL divergence per completion, KTO's reference point", "grows slowly"),
    Metric("kto/desirable", NATS, "mean implicit reward of the good ones", "rises"),
    Metric("kto/undesirable", NATS, "mean implicit reward of the bad ones", "falls"),
)
DRAWS = (
    Metric("groups_sampled", COUNT, "groups sampled with dynamic sampling"),
    Metric("groups_kept", COUNT, "of these, groups that are trained on", "the number of problems per step"),
    Metric("resample_rounds", COUNT, "extra rounds of dynamic sampling", "few"),
    Metric("signal/predicted", SHARE, "groups expected to have a signal when their problems were drawn"),
    Metric("signal/seen", SHARE, "groups whose scores differ", "near the prediction"),
    Metric("pack/*", "", "of each pack of a mixture: groups, reward, correct, unscored, completion_tokens"),
)
TURNS = (
    Metric("turns/count", COUNT, "turns of the model in a rollout"),
    Metric("turns/replies", COUNT, "replies of the environment in a rollout"),
    Metric("turns/reply_tokens", TOKENS, "tokens of the replies in a rollout"),
    Metric("turns/reward", SCORE, "sum of the turns' rewards in a rollout", "rises"),
    Metric("turns/void", SHARE, "turns that the environment calls void", "falls"),
    Metric("tools/calls", COUNT, "tool calls in a rollout"),
    Metric("tools/failed", SHARE, "calls that failed", "falls"),
    Metric("finish/*", SHARE, "rollouts that ended for each reason", "`stop` dominates; `error` is 0"),
    Metric("credit/steps", COUNT, "steps of credit in a rollout"),
    Metric("credit/return_*", SCORE, "mean return to go of the first, second, ... step"),
)
ENGINE = (
    Metric(
        "push/moved", NATS, "how far the trainer's logprobs moved between two pushes of weights", "above the rounding"
    ),
    Metric(
        "push/difference",
        NATS,
        "how far the engines' logprobs are from the trainer's after a push",
        "near the rounding",
    ),
    Metric("push/rounding", NATS, "their difference by rounding alone"),
)
MONITOR = (
    Metric("monitor/proxy", SCORE, "mean score of the run's own verifier (the proxy)", "rises with the monitor"),
    Metric("monitor/score", SCORE, "mean score of the monitor", "rises with the proxy"),
    Metric("monitor/correct", SHARE, "rollouts that the monitor calls correct", "rises"),
    Metric("monitor/unscored", SHARE, "rollouts without a monitor's score", "0"),
    Metric("monitor/proxy_std", SCORE, "deviation of the proxy's scores"),
    Metric("monitor/score_std", SCORE, "deviation of the monitor's scores"),
    Metric("monitor/proxy_se", SCORE, "standard error of the proxy's mean"),
    Metric("monitor/score_se", SCORE, "standard error of the monitor's mean"),
    Metric("monitor/groups_r", "", "correlation of the groups' means by proxy and monitor", "high"),
    Metric("monitor/worth", "", "slope of the proxy on the monitor within groups", "does not fall"),
    Metric("monitor/score_within", "", "mean variance of the monitor's scores within groups"),
    Metric("monitor/score_range", SCORE, "highest less lowest score of the monitor"),
    Metric("monitor/proxy_range", SCORE, "highest less lowest score of the proxy"),
    Metric("monitor/rank", "", "rank correlation of proxy and monitor within groups", "does not fall"),
    Metric("monitor/rank_se", "", "its standard error"),
    Metric("monitor/ranked", COUNT, "groups in which neither is constant"),
    Metric("monitor/proxy_only", SHARE, "rollouts that the proxy accepts and the monitor rejects", "low and steady"),
    Metric("monitor/monitor_only", SHARE, "rollouts that the monitor accepts and the proxy rejects", "low and steady"),
    Metric("monitor/repetition", SHARE, "token 4-grams that occurred earlier in the completion", "steady"),
    Metric("monitor/length_drift", "", "relative change of the length since the first steps", "near 0"),
    Metric("monitor/repetition_drift", SHARE, "change of the repetition since the first steps", "near 0"),
    Metric("monitor/suspicious", "0 or 1", "whether the step has slow signs of reward hacking", "0"),
    Metric("monitor/falling", "0 or 1", "whether the step has fast signs of reward hacking", "0"),
)  # fmt: skip
METRICS: dict[str, tuple[Metric, ...]] = {
    "Every run": ALL,
    "The update": UPDATE,
    "Critic": CRITIC,
    "Pairs and labels": PREFERENCE,
    "Which problems": DRAWS,
    "Turns, tools and steps of credit": TURNS,
    "vLLM": ENGINE,
    "Monitor": MONITOR,
}
"""All metrics by subject, in the order of the reference."""


def find_metric(name: str) -> Metric | None:
    """Return the metric of a logged name; None for one that the table lacks."""
    rows = [row for rows in METRICS.values() for row in rows]
    return next((row for row in rows if row.matches(name)), None)

"""`rlvr profile TASK --model M`: how hard a pack's problems are for a model, and how many would teach it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

from rich.table import Table
from tyro.conf import Positional

from rlvr.commands.arguments import parse_settings
from rlvr.commands.console import Display
from rlvr.commands.eval import EvalArgs, ModelOnTask, run
from rlvr.config.settings import COUNT
from rlvr.config.shared import Samples
from rlvr.core.files.write import write_whole
from rlvr.training.evaluation.evaluate import Answers
from rlvr.training.evaluation.passk import is_right, pass_at_k, pass_power_k

BINS = 10


@dataclass(frozen=True, kw_only=True)
class ProfileArgs(ModelOnTask):
    """Pass rates of a model over a pack's problems: too easy, useful, too hard."""

    task: Positional[str] = field()
    split: Literal["test", "train"] = "train"
    """Split of the task pack."""
    samples: Samples = 8
    group_size: Annotated[int, COUNT] = 8
    """Group size of the planned training, at most the number of samples."""
    max_problems: Annotated[int | None, COUNT] = 256
    out_dir: Path = Path("runs/profile")
    """Output folder for answers.jsonl and profile.jsonl (a line per problem, for --curriculum.profile)."""

    def evaluation(self) -> EvalArgs:
        """Return the evaluation that gives the pass rates."""
        shared = {name: value for name, value in vars(self).items() if name != "group_size"}
        return EvalArgs(**{**shared, "k": (1, self.group_size)})


def main(argv: Sequence[str]) -> int:
    """Run `rlvr profile TASK --model M [flags]`."""
    args = parse_settings(ProfileArgs, argv, prog="rlvr profile", description=ProfileArgs.__doc__ or "")
    if args.group_size < 2:
        raise ValueError(f"--group-size {args.group_size}: a group of one has no differing rewards; expected 2 or more")
    if args.group_size > args.samples:
        raise ValueError(f"--group-size {args.group_size}: expected at most --samples, which is {args.samples}")
    run(args.evaluation())
    answers = list(Answers(args.out_dir / "answers.jsonl").held.values())
    counts = right_of_each(answers, args.samples, args.threshold)
    scores = scores_of_each(answers, args.samples)
    fingerprint = json.loads((args.out_dir / "settings.json").read_text("utf-8"))["fingerprint"]
    of_all = {"fingerprint": fingerprint, "model": args.model, "verifier": args.verifier}
    rows = [
        {"id": name, "samples": n, "correct": c, "score": fmean(scores[name]), **of_all}
        for name, (n, c) in counts.items()
    ]
    write_whole(args.out_dir / "profile.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    result = profile(list(counts.values()), args.group_size)
    signal = expected_signal(answers, args.samples, args.group_size)
    display = Display()
    display.print_table(histogram(result))
    display.say(
        f"too hard (never right) {result['too_hard']:.1%}, too easy (always right) {result['too_easy']:.1%}, "
        f"between {result['between']:.1%}"
    )
    display.say(f"groups of {args.group_size} with differing rewards: {signal:.1%} expected")
    return 0


def right_of_each(
    answers: Sequence[Mapping[str, Any]], samples: int, threshold: float | None = None
) -> dict[str, tuple[int, int]]:
    """Return (scored samples, correct ones) of each problem, from its first `samples` answers.

    With `threshold`, a score of at least that is correct; otherwise the verdict decides.
    """
    scored = [row for row in answers if row["score"] is not None and row["sample"] < samples]
    totals = Counter(row["id"] for row in scored)
    right = Counter(row["id"] for row in scored if is_right(row, "", threshold))
    return {name: (n, right[name]) for name, n in totals.items()}


def scores_of_each(answers: Sequence[Mapping[str, Any]], samples: int) -> dict[str, list[float]]:
    """Return the scores of each problem, from those of its first `samples` answers that have one."""
    scores: dict[str, list[float]] = {}
    for row in answers:
        if row["score"] is not None and row["sample"] < samples:
            scores.setdefault(row["id"], []).append(row["score"])
    return scores


def expected_signal(answers: Sequence[Mapping[str, Any]], samples: int, group_size: int) -> float:
    """Return the expected share of groups of G whose scores differ, also for a verifier that grades.

    For each problem with G scored samples: 1 less the chance that all of G have one score, C(n_s, G) / C(n, G) for each
    score s that n_s of its n samples have, which is unbiased. ValueError where no problem has G.
    """
    enough = [values for values in scores_of_each(answers, samples).values() if len(values) >= group_size]
    if not enough:
        raise ValueError(f"no problem has {group_size} scored samples")
    flat = [
        sum(pass_power_k(len(values), count, group_size) for count in Counter(values).values()) for values in enough
    ]
    return 1 - sum(flat) / len(flat)


def profile(counts: Sequence[tuple[int, int]], group_size: int) -> dict[str, Any]:
    """Return shares of problems by their pass rate, from (samples, correct ones) of each.

    "signal" is the expected share of groups of G whose rewards differ: the chance that at least one of G is right less
    the chance that all are, both unbiased; problems with fewer than G samples are left out of it. "bins" counts the
    rates strictly between 0 and 1 in tenths. Raises ValueError where no problem has G samples.
    """
    enough = [(n, c) for n, c in counts if n >= group_size]
    if not enough:
        raise ValueError(f"no problem has {group_size} scored samples")
    between = [c / n for n, c in counts if 0 < c < n]
    bins = Counter(int(rate * BINS) for rate in between)
    return {
        "problems": len(counts),
        "too_hard": sum(c == 0 for _, c in counts) / len(counts),
        "too_easy": sum(c == n for n, c in counts) / len(counts),
        "between": len(between) / len(counts),
        "signal": sum(pass_at_k(n, c, group_size) - pass_power_k(n, c, group_size) for n, c in enough) / len(enough),
        "bins": [bins[i] for i in range(BINS)],
    }


def histogram(result: Mapping[str, Any]) -> Table:
    """Return a table of problems by pass rate, with bars."""
    table = Table(title=f"pass rates of {result['problems']} problems")
    table.add_column("rate")
    table.add_column("problems", justify="right")
    table.add_column("")
    ends = [round(result[name] * result["problems"]) for name in ("too_hard", "too_easy")]
    labels = ["0", *(f"{i / BINS:.1f} to {(i + 1) / BINS:.1f}" for i in range(BINS)), "1"]
    counts = [ends[0], *result["bins"], ends[1]]
    for label, count in zip(labels, counts):
        table.add_row(label, str(count), "█" * round(40 * count / max(*counts, 1)))
    return table

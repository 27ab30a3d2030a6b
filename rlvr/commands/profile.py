"""`rlvr profile TASK --model M`: how hard a pack's problems are for a model, and how many would teach it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

from rich.table import Table

from rlvr.config.settings import COUNT
from rlvr.config.shared import Samples
from rlvr.core.files.write import write_whole
from rlvr.training.evaluation.answers import Answers
from rlvr.training.evaluation.passk import by_problem, is_right, pass_power_k

from .arguments import Positional, parse
from .console import Display
from .eval import EvalArgs, ModelOnTask, run

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
    args = parse(ProfileArgs, argv, prog="rlvr profile", description=ProfileArgs.__doc__ or "")
    if args.group_size < 2:
        raise ValueError(f"--group-size {args.group_size}: a group of one has no differing rewards; expected 2 or more")
    if args.group_size > args.samples:
        raise ValueError(
            f"--samples {args.samples} with --group-size {args.group_size}: a group needs as many samples; raise "
            "--samples, or lower --group-size"
        )
    run(args.evaluation())
    held = Answers(args.out_dir / "answers.jsonl").held.values()
    answers = [row for row in held if row["score"] is not None and row["sample"] < args.samples]
    fingerprint = json.loads((args.out_dir / "settings.json").read_text("utf-8"))["fingerprint"]
    of_all = {"fingerprint": fingerprint, "model": args.model, "verifier": args.verifier}
    rows: list[dict[str, Any]] = []
    for name, own in by_problem(answers).items():
        right = sum(is_right(row, "", args.threshold) for row in own)
        rows.append({"id": name, "samples": len(own), "correct": right, "score": fmean(row["score"] for row in own)})
    text = "".join(json.dumps(row | of_all) + "\n" for row in rows)
    write_whole(args.out_dir / "profile.jsonl", text)
    signal = expected_signal([[row["score"] for row in own] for own in by_problem(answers).values()], args.group_size)
    rates = [row["correct"] / row["samples"] for row in rows]
    hard, easy = rates.count(0.0) / len(rates), rates.count(1.0) / len(rates)
    between = sum(0 < rate < 1 for rate in rates) / len(rates)
    display = Display()
    display.print_table(histogram(rates))
    display.say(f"too hard (never right) {hard:.1%}, too easy (always right) {easy:.1%}, between {between:.1%}")
    display.say(f"groups of {args.group_size} with differing rewards: {signal:.1%} expected")
    return 0


def expected_signal(scores: Sequence[Sequence[float]], group_size: int) -> float:
    """Return the expected share of groups of G whose scores differ, also for a verifier that grades.

    scores: of each problem. With G scores or more, a problem's groups are all alike with the chance
    sum over s of C(n_s, G) / C(n, G), where n_s of its n samples have the score s. This is unbiased. Problems with
    fewer scores are left out; ValueError where no problem has G.
    """
    enough = [values for values in scores if len(values) >= group_size]
    if not enough:
        raise ValueError(f"no problem has {group_size} scored samples")
    alike = [
        sum(pass_power_k(len(values), count, group_size) for count in Counter(values).values()) for values in enough
    ]
    return 1 - sum(alike) / len(alike)


def histogram(rates: Sequence[float]) -> Table:
    """Return a table of problems by pass rate, with bars: never right, in tenths between, always right."""
    between = Counter(int(rate * BINS) for rate in rates if 0 < rate < 1)
    counts = {"0": rates.count(0.0)}
    counts |= {f"{i / BINS:.1f} to {(i + 1) / BINS:.1f}": between[i] for i in range(BINS)}
    counts |= {"1": rates.count(1.0)}
    table = Table(title=f"pass rates of {len(rates)} problems")
    table.add_column("rate")
    table.add_column("problems", justify="right")
    table.add_column("")
    for label, count in counts.items():
        table.add_row(label, str(count), "█" * round(40 * count / max(*counts.values(), 1)))
    return table

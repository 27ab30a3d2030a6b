"""`rlvr sample`: rejection sampling. Of several completions of each problem the best become a data set.

The data set is a file of demonstrations for `--sft.data`: to fine-tune a policy on the best of its own completions
(RAFT, arXiv:2304.06767; Llama 2, arXiv:2307.09288), or a smaller model on those of a larger one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from rlvr.config.settings import ADVANCED, COUNT, SCORE, Rules, spell
from rlvr.config.shared import Samples
from rlvr.core.files.write import write_whole
from rlvr.core.seeding import derive_seed
from rlvr.core.types import Problem, RunError
from rlvr.runs.records import with_interval
from rlvr.training.evaluation.answers import Answers, scan_answers
from rlvr.training.evaluation.passk import by_problem, is_right, mean_with_interval

from .arguments import parse
from .console import Display
from .eval import EvalArgs, ModelOnTask, chosen_problems, load_task, run

DATA = "data.jsonl"
CUT_SHORT = ("length", "context", "filter")  # finish reasons of completions that are no demonstrations
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class SampleArgs(ModelOnTask):
    """Rejection sampling: the best completions of a model become demonstrations for fine-tuning."""

    task: str = field()  # required, as that of `rlvr eval`
    split: Literal["test", "train"] = "train"
    """Split of the task pack."""
    samples: Samples = 8
    keep: Literal["correct", "best"] = "correct"
    """correct: those that the verifier accepts. best: those of the highest score, right or wrong."""
    per_problem: Annotated[int, COUNT] = 1
    """Completions kept of each problem, at most: those of the highest score, all different."""
    min_score: Annotated[float | None, SCORE] = None
    """Least score of a completion that is kept. None: any."""
    selector: str | None = None
    """Verifier whose score says which are best (reward_model, for example). None: the verifier's own score."""
    selector_option: Annotated[tuple[str, ...], ADVANCED] = ()
    """Options of the selector, as key=value."""
    out_dir: Path = Path("runs/sample")
    """Output folder for answers.jsonl and data.jsonl. A sampling that is already in it is resumed."""

    def rules(self, at: str) -> Rules:
        option = spell("selector_option", at)
        most = f"{at}{spell('per_problem', at)} {self.per_problem}: expected at most {at}samples, {self.samples}"
        return [
            *super().rules(at),
            (self.selector is not None or not self.selector_option, f"{at}{option} without a selector; name it too"),
            (self.selector is None or self.samples > 1, f"{at}selector has nothing to choose: set {at}samples above 1"),
            (self.per_problem <= self.samples, most),
        ]

    def evaluation(self) -> EvalArgs:
        """Return the evaluation that samples and scores the completions."""
        own = {"keep", "per_problem", "min_score"}
        shared = {name: value for name, value in vars(self).items() if name not in own}
        return EvalArgs(**{**shared, "k": (1,) if self.selector is None else (1, self.samples)})


def main(argv: Sequence[str]) -> int:
    args = parse(SampleArgs, argv, prog="rlvr sample", description=SampleArgs.__doc__ or "")
    measured = sample(args)
    display = Display()
    right = {name: with_interval(measured, name, 3) for name in ("right", "right of the kept") if name in measured}
    display.say("; ".join(f"{name}: {shown}" for name, shown in right.items()))
    display.say(f"{measured['kept']} completions of {measured['problems with one']} problems of {measured['problems']}")
    display.say(f"for fine-tuning, --sft.data {args.out_dir / DATA}")
    return 0


def sample(args: SampleArgs) -> dict[str, Any]:
    """Sample, score, and keep the best. Return what was measured. Raises RunError where there is nothing to keep."""
    args.check()
    run(args.evaluation())
    problems = {problem.id: problem for problem in chosen_problems(load_task(args.evaluation()), args.evaluation())}
    path = args.out_dir / "answers.jsonl"
    wanted = [row for row in Answers(path).held.values() if row["id"] in problems and row["sample"] < args.samples]
    chosen = [row for own in by_problem(wanted).values() for row in choose_best(own, args)]
    if not chosen:
        cut = sum(row["finish_reason"] in CUT_SHORT for row in wanted)
        least = "" if args.min_score is None else f" with a score of {args.min_score:g} or more"
        raise RunError(
            f"nothing to keep: of {len(wanted)} completions of {len(problems)} problems {cut} were cut off, none of "
            f"the others {'is right' if args.keep == 'correct' else 'has a text and a score'}{least}; sample more, or "
            "another model"
        )
    keys = {(row["id"], row["sample"]) for row in chosen}
    texts = {key: row for row, _ in scan_answers(path) if (key := (row["id"], row["sample"])) in keys}
    lines = [
        demonstration(problems[row["id"]], texts[row["id"], row["sample"]], row[score_field(args)]) for row in chosen
    ]
    write_whole(args.out_dir / DATA, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    measured: dict[str, Any] = {
        "problems": len(problems),
        "problems with one": len({row["id"] for row in chosen}),
        "kept": len(chosen),
    }
    for name, rows in (("right", wanted), ("right of the kept", chosen)):
        measured |= share_right(name, rows, args.threshold)
    return measured


def choose_best(rows: Sequence[Row], args: SampleArgs) -> list[Row]:
    """Return the completions of one problem that are kept: different ones with the highest scores, ties at random.

    Truncated and empty completions, and those without a score, are not kept.
    """
    field = score_field(args)
    ordered = sorted(rows, key=lambda row: derive_seed(args.seed, "kept", row["id"], row["sample"]))
    scored = [row for row in ordered if row[field] is not None and row["finish_reason"] not in CUT_SHORT]
    scored = [row for row in scored if row["completion"]]
    if args.keep == "correct":
        scored = [row for row in scored if is_right(row, "", args.threshold)]
    if args.min_score is not None:
        scored = [row for row in scored if row[field] >= args.min_score]
    different: dict[str, Row] = {}
    for row in sorted(scored, key=lambda row: -float(row[field])):
        different.setdefault(row["completion"], row)
    return list(different.values())[: args.per_problem]


def score_field(args: SampleArgs) -> str:
    """Return the field of an answer by which it is chosen."""
    return "score" if args.selector is None else "selector_score"


def demonstration(problem: Problem, row: Row, score: float) -> dict[str, Any]:
    """Return a line of the data set: prompt and completion (of several turns the model's messages)."""
    turns = [turn["text"] for turn in row.get("turns", ()) if turn["role"] == "assistant"]
    said: Any = [{"role": "assistant", "content": text} for text in turns] if turns else row["completion"]
    return {"prompt": problem.prompt, "completion": said, "score": score, "id": problem.id}


def share_right(name: str, rows: Iterable[Row], threshold: float | None) -> dict[str, Any]:
    """Return the share of completions that the verifier accepts, the mean over problems, with its interval."""
    scored = [row for row in rows if row["score"] is not None]
    shares = [sum(is_right(row, "", threshold) for row in own) / len(own) for own in by_problem(scored).values()]
    return mean_with_interval(name, shares)

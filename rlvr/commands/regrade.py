"""`rlvr regrade RUN --verifier V`: judge the stored rollouts of a run again, and compare. Resumes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

from rich import box
from rich.table import Table

from rlvr.config import Config
from rlvr.config.settings import SECONDS, WORKERS_OR_CORES
from rlvr.config.shared import TaskSettings
from rlvr.config.training import read_config
from rlvr.core.files.jsonl import parse_object
from rlvr.core.files.write import name_in_errors, write_whole
from rlvr.core.types import Completion, Group, Problem, Status, Task, Turn, Verdict, Verifier
from rlvr.runs.folder import REGRADING, RunFolder, read_record, settings_folder
from rlvr.runs.log import drop_cut_line
from rlvr.runs.reading import Record, all_rollouts, check_run
from rlvr.tasks.base import seal_task
from rlvr.training.step.rewards import group_rewards
from rlvr.training.supervision.signals import StopRequest
from rlvr.verifiers.runner import Runner
from rlvr.verifiers.runner.base import check_references

from .arguments import Positional, parse
from .console import Display
from .task import apply_verifier, build_task

Rewards = list[list[float | None]]  # of groups
CLOSE = 1e-6  # difference of scores and rewards that is rounding


@dataclass(frozen=True)
class Regraded:
    """A line of rollouts.jsonl and its verdict today; None where the stored one is kept."""

    record: Record
    verdict: Verdict | None


RESUMABLE = ("workers", "timeout", "out_dir")


def confusion_table(result: Mapping[str, Any]) -> Table:
    """Return how many rollouts of each stored verdict have which new one."""
    confusion = result["confusion"]
    seen = {name for row in confusion.values() for name in row}
    columns = [str(status) for status in Status if str(status) in seen]
    title = f"{result['rollouts']:,} rollouts: stored verdict (rows), new verdict (columns)"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("stored", *columns):
        table.add_column(name, justify="left" if name == "stored" else "right", no_wrap=True)
    for status in map(str, Status):
        if status in confusion:
            table.add_row(status, *(f"{confusion[status].get(name, 0):,}" for name in columns))
    return table


def summary(result: Mapping[str, Any]) -> list[str]:
    count, rollouts = result["disagreements"], result["rollouts"]
    lines = [f"agreement {result['agreement']:.2%}: {count:,} of {rollouts:,} rollouts have another verdict or score"]
    if words := result["same_verdict_in_other_words"]:
        lines.append(f"{words:,} more have the same verdict with another reason or extracted answer")
    if kept := result["kept_verdicts"]:
        lines.append(f"{kept:,} keep their stored verdict: their environment judged or failed, and no verifier")
    reward, signal = result["reward"], result["groups_with_signal"]
    means = [("none" if value is None else f"{value:.4f}") for value in (reward["stored"], reward["new"])]
    lines.append(f"mean reward {means[0]} stored, {means[1]} new; {reward['changed']:,} rewards differ")
    lines.append(f"groups with signal: {signal['stored']:,} of {result['groups']:,} stored, {signal['new']:,} new")
    return lines


@dataclass(frozen=True)
class RegradeArgs:
    """Judge the stored rollouts of a run again: a table of old and new verdicts, a file of those that differ, and how
    rewards would have changed. Of several turns the verifier sees the last one's text, as in the run."""

    run: Positional[Path]
    """The run's folder."""
    verifier: str | None = None
    """Registered name, or module:attribute. None: the run's own, which shows whether its verdicts can be repeated."""
    verifier_option: tuple[str, ...] = ()
    """Options of the verifier, as key=value: of the one that is named, otherwise of the run's own, in place of what the
    run has for them."""
    out_dir: Path | None = None
    """Output folder for verdicts.jsonl, disagreements.jsonl and result.json. None: regrade-VERIFIER in the run's. A
    regrading that is already in it is resumed."""
    workers: Annotated[int, WORKERS_OR_CORES] = 0
    """Worker processes for the verifier, unless it runs in process. 0: one for each core, at least 2."""
    timeout: Annotated[float, SECONDS] = 10.0
    """Time limit for one completion in a worker process, in seconds."""

    @property
    def folder(self) -> Path:
        if self.out_dir is not None:
            return self.out_dir
        name = "-".join([(self.verifier or "own").replace(":", "."), *self.verifier_option])
        return self.run / f"regrade-{''.join(c if c.isalnum() or c in '-_.=' else '_' for c in name)[:80]}"


def main(argv: Sequence[str]) -> int:
    args = parse(RegradeArgs, argv, prog="rlvr regrade")
    with StopRequest().handling_signals() as stop:
        stop.left = lambda: f"run the same command to resume; the verdicts so far are in {args.folder}"
        stop.doing = "reading the task"
        regrade(args, stop)
    return 0


def regrade(args: RegradeArgs, stop: StopRequest) -> dict[str, Any]:
    """Judge all rollouts, write the results and show them; return the content of result.json."""
    check_run(args.run, ("rollouts.jsonl", "rollouts-0000.jsonl.gz"))
    config, task, verifier = settings_of_run(args)
    problems = named_problems(task, args.run)
    check_references(verifier, problems.values())
    folder = regrade_folder(args, task.fingerprint)
    with folder.lock() as lines, closing(Display()) as display:
        for line in (*lines, *folder.claim()):
            display.say(line)
        stop.doing = "judging"
        found = judge(args, config, verifier, problems, display)
        result = found.result()
        write_whole(args.folder / "result.json", json.dumps(result, indent=2) + "\n")
        display.print_table(confusion_table(result))
        for line in summary(result):
            display.say(line, wrap=True)
        display.say(f"verdicts, disagreements and numbers: {args.folder}")
    return result


def settings_of_run(args: RegradeArgs) -> tuple[Config, Task, Verifier]:
    """Return the run's settings, its task, and the verifier that is asked for. ValueError where they do not fit."""
    record = read_record(args.run / "config.json")
    if record is None:
        raise FileNotFoundError(f"{args.run / 'config.json'}: no such file, which names the task of the rollouts")
    config = read_config(record)
    task = seal_task(build_task(config))
    if record.get("fingerprint") not in (None, task.fingerprint):
        raise ValueError(
            f"{args.run}: the task {config.run.task!r} has other problems now, or its verifier other settings "
            f"(fingerprint {record['fingerprint']} then, {task.fingerprint} now); restore them"
        )
    asked = TaskSettings(verifier=args.verifier, verifier_option=args.verifier_option)
    return config, task, apply_verifier(task, asked, "--").verifier


def named_problems(task: Task, run: Path) -> dict[str, Problem]:
    """Return the problems that a run's rollouts name, by id. Raise ValueError for one that the task lacks."""
    wanted = {str(record.get("problem")) for record in all_rollouts(run)}
    found = {problem.id: problem for problem in task.train if problem.id in wanted}
    missing = sorted(wanted - found.keys())
    if missing:
        raise ValueError(f"{run}: problem {missing[0]!r} of its rollouts is not among the task's problems to train on")
    if not wanted:
        raise ValueError(f"{run}: no rollouts yet; nothing to judge")
    return found


def regrade_folder(args: RegradeArgs, fingerprint: str) -> RunFolder:
    """Return the folder of a regrading. One with the same settings is resumed."""
    places = {"run": os.path.realpath(args.run), "out_dir": str(args.folder), "fingerprint": fingerprint}
    settings = {**dataclasses.asdict(args), **places}
    return settings_folder(args.folder, REGRADING, settings, resumable=RESUMABLE, results="verdicts.jsonl")


def judge(
    args: RegradeArgs, config: Config, verifier: Verifier, problems: dict[str, Problem], display: Display
) -> Changes:
    """Judge the rollouts that are not judged yet, step by step. Write verdicts and disagreements.

    Verdicts are appended as they come, so that a killed regrading resumes; at the end both files are written in the
    order of the log.
    """
    changes, total = Changes(config), config.run.steps
    path = args.folder / "verdicts.jsonl"
    held = read_verdicts(path)
    lines: list[str] = []
    differing: list[str] = []
    display.start("judging", total)
    with (
        Runner(verifier, workers=args.workers, timeout=args.timeout) as runner,
        name_in_errors(path),
        path.open("a+b") as file,
    ):
        drop_cut_line(file)
        for step, rows in groupby(all_rollouts(args.run), key=lambda record: record.get("step")):
            records = list(rows)
            keys = list(map(key_of, records))
            keeps = [keeps_verdict(record, own=args.verifier is None) for record in records]
            missing = [i for i, key in enumerate(keys) if key not in held]
            asked = [i for i in missing if not keeps[i]]
            pairs = [(problems[str(records[i]["problem"])], str(records[i].get("completion", ""))) for i in asked]
            found: dict[int, Verdict] = dict(zip(asked, runner.verify(pairs), strict=True))
            for i in missing:
                held[keys[i]] = line_of(records[i], found.get(i))
                file.write(json.dumps(held[keys[i]]).encode() + b"\n")
            file.flush()
            verdicts = [held[key] for key in keys]
            lines += [json.dumps(row) + "\n" for row in verdicts]
            regraded = [
                Regraded(record, None if row["status"] is None else verdict_of(row))
                for record, row in zip(records, verdicts, strict=True)
            ]
            differing += [json.dumps(row) + "\n" for row in changes.add(regraded, problems)]
            display.step(min(int(step or 0), total), "")
    write_whole(path, "".join(lines))
    write_whole(args.folder / "disagreements.jsonl", "".join(differing))
    return changes


def read_verdicts(path: Path) -> dict[str, dict[str, Any]]:
    """Return the lines of verdicts.jsonl by key, as far as they are complete."""
    found = {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with suppress(ValueError):
            row = parse_object(line, "")
            found[str(row.get("key"))] = row
    return found


def keeps_verdict(record: Record, *, own: bool) -> bool:
    """Return whether a rollout keeps its stored verdict, because no verifier made it.

    That is so where its environment failed, and with the run's `own` verifier where its environment judged it.
    """
    return record.get("finish_reason") == "error" or (own and record.get("judged_by") == "environment")


def key_of(record: Record) -> str:
    """Return the key of a rollout: step, problem, sample, and a hash of its completion."""
    text = str(record.get("completion", "")).encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=8).hexdigest()
    return f"{record.get('step')}/{record.get('problem')}/{record.get('sample')}/{digest}"


def line_of(record: Record, verdict: Verdict | None) -> dict[str, Any]:
    """Return a line of verdicts.jsonl; status null where the rollout keeps its stored verdict."""
    if verdict is None:
        return {"key": key_of(record), "status": None}
    steps = {"steps": [list(step) for step in verdict.steps]} if verdict.steps else {}
    fields = {**verdict_fields(verdict), "parts": dict(verdict.parts), **steps}
    return {"key": key_of(record), **fields, "agrees": is_same_verdict(record, verdict)}


class Changes:
    """Compares the stored verdicts of a run with other ones, step by step.

    Rewards are computed from both by the run's settings. A group has a signal where its rewards differ.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.counts: Counter[str] = Counter()
        self.confusion: Counter[tuple[str, str]] = Counter()  # (stored status, new status): rollouts
        self.sums = {"stored": 0.0, "new": 0.0}

    def add(self, rows: Sequence[Regraded], problems: Mapping[str, Problem]) -> Iterator[dict[str, Any]]:
        """Count the rollouts of a step; yield a line for each whose verdict is another."""
        records = [row.record for row in rows]
        stored = [verdict_of(record) for record in records]
        new = [row.verdict or old for row, old in zip(rows, stored)]
        rewards = {"stored": self._count_rewards("stored", groups_of(records, stored))}
        rewards["new"] = self._count_rewards("new", groups_of(records, new))
        self.counts["rollouts"] += len(rows)
        self.counts["kept"] += sum(row.verdict is None for row in rows)
        self.counts["rewards"] += sum(map(differ, rewards["stored"], rewards["new"]))
        for record, old, verdict, *pair in zip(records, stored, new, rewards["stored"], rewards["new"]):
            self.confusion[str(old.status), str(verdict.status)] += 1
            if is_same_verdict(record, verdict):
                self.counts["other words"] += (old.reason, old.extracted) != (verdict.reason, verdict.extracted)
                continue
            self.counts["disagreements"] += 1
            reference = problems[str(record["problem"])].reference
            plain = isinstance(reference, str | int | float | bool | None)
            yield {
                **{name: record.get(name) for name in ("step", "problem", "sample", "completion")},
                "reference": reference if plain else repr(reference)[:2000],
                "stored": verdict_fields(old),
                "new": verdict_fields(verdict),
                "reward": pair,
            }

    def _count_rewards(self, which: str, groups: Sequence[Group]) -> list[float | None]:
        """Return the reward of each rollout, and count rewards and groups with a signal."""
        of_groups = group_rewards(groups, self.config.rollout)
        for rewards in of_groups:
            scored = [reward for reward in rewards if reward is not None]
            self.sums[which] += sum(scored)
            self.counts[f"scored {which}"] += len(scored)
            self.counts[f"groups {which}"] += 1
            self.counts[f"signal {which}"] += bool(scored) and max(scored) - min(scored) > CLOSE
        return [reward for rewards in of_groups for reward in rewards]

    def result(self) -> dict[str, Any]:
        """Return all numbers, as result.json holds them."""
        c, sides = self.counts, ("stored", "new")
        confusion: dict[str, dict[str, int]] = {}
        for (old, new), count in sorted(self.confusion.items()):
            confusion.setdefault(old, {})[new] = count
        means = {side: self.sums[side] / c[f"scored {side}"] if c[f"scored {side}"] else None for side in sides}
        return {
            "rollouts": c["rollouts"],
            "agreement": 1 - c["disagreements"] / max(c["rollouts"], 1),
            "disagreements": c["disagreements"],
            "same_verdict_in_other_words": c["other words"],
            "kept_verdicts": c["kept"],
            "confusion": confusion,
            "reward": {**means, "changed": c["rewards"]},
            "groups": c["groups stored"],
            "groups_with_signal": {side: c[f"signal {side}"] for side in sides},
        }


def verdict_of(record: Record) -> Verdict:
    steps = tuple((int(end), float(score)) for end, score in record.get("steps", ()))
    words = (record.get("reason") or "", record.get("extracted"), record.get("parts") or {})
    return Verdict(record["status"], record["score"], *words, steps=steps)


def verdict_fields(verdict: Verdict) -> dict[str, Any]:
    """Return what a line of disagreements.jsonl or verdicts.jsonl says of a verdict."""
    fields = {name: getattr(verdict, name) for name in ("score", "reason", "extracted")}
    return {"status": str(verdict.status), **fields}


def is_same_verdict(record: Record, verdict: Verdict) -> bool:
    """Return whether a verdict has the status and the score of the stored one."""
    return str(verdict.status) == record.get("status") and not differ(verdict.score, record.get("score"))


def differ(one: float | None, other: float | None) -> bool:
    """Return whether two scores or rewards differ by more than rounding."""
    if one is None or other is None:
        return one is not other
    return abs(one - other) > CLOSE


def groups_of(records: Sequence[Record], verdicts: Sequence[Verdict]) -> list[Group]:
    """Return the rollouts of a step as groups, as they were sampled: each begins with sample 0."""
    starts = [i for i, record in enumerate(records) if not i or record.get("sample") == 0]
    groups = []
    for start, end in zip(starts, [*starts[1:], len(records)]):
        completions = tuple(completion_of(record) for record in records[start:end])
        problem = Problem(str(records[start].get("problem")), "")
        groups.append(Group(problem, (), completions, tuple(verdicts[start:end])))
    return groups


def completion_of(record: Record) -> Completion:
    """Return the completion of a line of rollouts.jsonl, as far as rewards depend on it: lengths, not tokens."""
    turns = tuple(
        Turn(turn["role"], turn["text"], turn["tokens"], turn.get("reward", 0.0), turn.get("void", False))
        for turn in record.get("turns", ())
    )
    length = sum(turn.length for turn in turns) if turns else record.get("tokens", 0)
    text, finish = str(record.get("completion", "")), record.get("finish_reason", "stop")
    return replace(Completion(text, (0,) * length, (0.0,) * length, finish), turns=turns)

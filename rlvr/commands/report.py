"""`rlvr report RUN`: curves, pass@k before and after, and sample rollouts of a run in one HTML file."""

from __future__ import annotations

import base64
import gzip
import html
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from rlvr.commands import curves
from rlvr.commands.arguments import parse
from rlvr.commands.curves import MARK, series
from rlvr.files.jsonl import check_file, parse_object
from rlvr.files.write import check_replaceable, write_whole
from rlvr.printable import printable
from rlvr.runs.records import describe_shuffled, graded, is_number, pass_names, present_names, with_interval

Record = dict[str, Any]

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1150px; margin: 2rem auto; padding: 0 1rem; color: #1f2328; }
table { border-collapse: collapse; margin: 1rem 0; } td, th { padding: .25rem .8rem; text-align: right; }
th { border-bottom: 2px solid #1f2328; } td { border-bottom: 1px solid #d0d7de; }
td:first-child, th:first-child { text-align: left; } img { width: 100%; }
pre { background: #f6f8fa; padding: .7rem; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
.prompt { color: #57606a; } .role { color: #0969da; } .void { font-style: italic; }
.status { font-weight: 600; color: #9a6700; }
.correct { color: #1a7f37; } .incorrect { color: #cf222e; } summary { cursor: pointer; }
"""
TITLE = "<title>rlvr: "
SAMPLES = 6  # rollouts shown for the first step and for the last


@dataclass(frozen=True)
class ReportArgs:
    """Draw the curves and tables of a run: report.html and curves.png in its folder."""

    run: Positional[Path]
    """The run's folder."""


def main(argv: Sequence[str]) -> int:
    """Run `rlvr report RUN` and return its exit code."""
    folder = parse(ReportArgs, argv, prog="rlvr report").run
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    if not any((folder / name).exists() for name in ("metrics.jsonl", "eval.jsonl")):
        raise FileNotFoundError(f"{folder}: neither metrics.jsonl nor eval.jsonl; expected the folder of a run")
    written = (folder / "report.html").exists()
    check_replaceable(folder / "report.html", "rlvr report:", (TITLE.encode(),))
    if not written:  # a report that exists vouches for the figure beside it
        check_replaceable(folder / "curves.png", "rlvr report:", (MARK.encode(),))
    print(write_report(folder))
    return 0


def write_report(folder: Path) -> Path:
    """Write curves.png and report.html into a run's folder and return the path of report.html.

    Read config.json, metrics.jsonl, eval.jsonl, alarms.jsonl and the rollouts; a missing file leaves out its section.
    Raise ValueError for a file with a damaged line.
    """
    metrics = read_lines(folder / "metrics.jsonl")
    evaluations = read_lines(folder / "eval.jsonl")
    alarms = read_alarms(folder)
    picture = curves.draw_curves(metrics, evaluations, alarms)
    sections = [
        f"<h1>{html.escape(folder.resolve().name)}</h1>",
        f"<p>{len(metrics)} steps, {len(evaluations)} evaluations.</p>",
        pass_table(evaluations),
        packs_table(evaluations),
        metrics_table(metrics),
    ]
    if picture is not None:
        write_whole(folder / "curves.png", picture)
        sections.append(f'<img alt="curves" src="data:image/png;base64,{base64.b64encode(picture).decode()}">')
    sections += [alarms_section(alarms), samples_section(folder), config_section(folder / "config.json")]
    path = folder / "report.html"
    head = f'<html lang="en"><meta charset="utf-8">{TITLE}{html.escape(folder.resolve().name)}</title>'
    body = "\n".join(filter(None, sections))
    write_whole(path, printable(f"<!doctype html>\n{head}<style>{STYLE}</style>\n{body}\n</html>\n"))
    return path


def pass_table(evaluations: Sequence[Record]) -> str:
    """Return an HTML table of pass@k (and of a graded score) by evaluation, with intervals and the overall change."""
    names = [prefix + name for name in pass_names(evaluations) for prefix in ("", "strict_", "lenient_")]
    names = [name for name in names if any(name in row for row in evaluations)]
    names += ["score"] if graded(evaluations) else []
    if not names:
        return ""
    rows = [[row.get("step"), *(with_interval(row, name) for name in names)] for row in evaluations]
    if len(evaluations) > 1:
        rows.append(["change", *(change(evaluations[0], evaluations[-1], name) for name in names)])
    problems = evaluations[-1].get("num_problems")
    threshold = evaluations[-1].get("threshold")
    right = "" if threshold is None else f" Correct for pass@k: a score of at least {threshold:g}."
    intro = f"<h2>pass@k</h2><p>{problems} held-out problems; 95 % intervals over problems in brackets.{right}</p>"
    return intro + table(["step", *(name.replace("_", " ") for name in names)], rows)


def packs_table(evaluations: Sequence[Record]) -> str:
    """Return an HTML table of pass@k by pack of a mixture and evaluation; "" for other tasks."""
    names = pass_names(evaluations)
    rows = []
    for row in evaluations:
        packs = row.get("packs")
        for pack, held in packs.items() if isinstance(packs, Mapping) else ():
            held = held if isinstance(held, Mapping) else {}
            rows.append([pack, row.get("step"), held.get("num_problems", ""), *(with_interval(held, n) for n in names)])
    order = {row[0]: place for place, row in reversed(list(enumerate(rows)))}
    rows.sort(key=lambda row: order[row[0]])
    return "<h3>By pack</h3>" + table(["pack", "step", "problems", *names], rows) if rows else ""


def change(first: Record, last: Record, name: str) -> str:
    """Return the difference of a number between two evaluations, "" where either lacks it."""
    both = is_number(first.get(name)) and is_number(last.get(name))
    return f"{last[name] - first[name]:+.3f}" if both else ""


def metrics_table(metrics: Sequence[Record]) -> str:
    """Return an HTML table of every metric: its mean over the first and over the last tenth of the steps."""
    names = [name for name in dict.fromkeys(name for row in metrics for name in row) if name != "step"]
    rows = []
    for name in names:
        values = series(metrics, name)[1]
        tenth = max(1, len(values) // 10)
        if values:
            rows.append([name, *(f"{sum(part) / tenth:.4g}" for part in (values[:tenth], values[-tenth:]))])
    if not rows:
        return ""
    shown = table(["metric", "first tenth of the steps", "last tenth"], rows)
    return f"<details><summary>all metrics</summary>{shown}</details>"


def table(head: Iterable[Any], rows: Iterable[Iterable[Any]]) -> str:
    """Return an HTML table; every cell is escaped."""

    def line(cells: Iterable[Any], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{line(head, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"


def alarms_section(alarms: Sequence[Record]) -> str:
    """Return the alarms as HTML: their signs, figures, and rollouts that the reward accepts and the monitor rejects."""
    parts = []
    for alarm in alarms:
        signs = "".join(f"<li>{html.escape(f'{name}: {text}')}</li>" for name, text in alarm["signs"].items())
        figures = table(alarm["figures"], [[f"{v:.4g}" if is_number(v) else v for v in alarm["figures"].values()]])
        parts.append(f"<h3>step {alarm['step']}</h3><ul>{signs}</ul>{figures}{''.join(map(sample, alarm['rollouts']))}")
    intro = (
        "<p>The reward (proxy) and its monitor diverged. The rollouts below are rewarded by the proxy and rejected by "
        "the monitor.</p>"
    )
    return "<h2>Alarms</h2>" + intro + "".join(parts) if parts else ""


def samples_section(folder: Path) -> str:
    """Return rollouts of the first and the last logged step as HTML, correct and incorrect ones alternating."""
    first, last = edge_rollouts(folder)
    steps = {rows[0].get("step"): rows for rows in (first, last) if rows}
    shown = [
        f"<h3>step {html.escape(str(step))}</h3>{''.join(map(sample, alternate(rows)[:SAMPLES]))}"
        for step, rows in steps.items()
    ]
    return "<h2>Rollouts</h2>" + "".join(shown) if shown else ""


def sample(row: Record) -> str:
    """Return one rollout as HTML: prompt, completion, verdict, reward and advantage."""
    prompt = row.get("prompt", "")
    if isinstance(prompt, list) and all(isinstance(message, Mapping) for message in prompt):
        prompt = "\n".join(f"[{message.get('role')}] {message.get('content')}" for message in prompt)
    numbers = ", ".join(
        f"{name} {row[name]:+.3f}" for name in ("reward", "advantage", "monitor_score") if is_number(row.get(name))
    )
    if not row.get("kept", True):
        numbers += ", not trained on (dropped by dynamic sampling)"
    reason = f" ({row['reason']})" if row.get("reason") else ""
    head, status = f"{row.get('problem')}, sample {row.get('sample')}: ", str(row.get("status"))
    return (
        f'<p>{html.escape(head)}<span class="status {html.escape(status)}">{html.escape(status)}</span>'
        f"{html.escape(reason)} {html.escape(numbers + describe_shuffled(row))}</p>"
        f"<pre><span class=prompt>{html.escape(str(prompt))}</span>{spoken(row)}</pre>"
    )


def spoken(row: Record) -> str:
    """Return the completion as HTML; of several turns each with its role, the replies in the colour of the prompt."""
    turns = row.get("turns")
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        return html.escape(str(row.get("completion", "")))
    parts = []
    for number, turn in enumerate(turns, 1):
        sampled = turn.get("role") == "assistant"
        facts = [f"{turn.get('role')}, {turn.get('tokens')} tokens", *(["void"] if turn.get("void") else [])]
        if is_number(turn.get("reward")):
            facts.append(f"reward {turn['reward']:+g}")
        if turn.get("calls"):
            facts.append(f"{turn['calls']} calls, {turn.get('failed', 0)} failed")
        kind = ("void" if turn.get("void") else "turn") if sampled else "prompt"
        label = html.escape(f"[{number}: {', '.join(facts)}]")
        parts.append(
            f"\n<span class=role>{label}</span>\n<span class={kind}>{html.escape(str(turn.get('text')))}</span>"
        )
    return "".join(parts)


def alternate(rows: Sequence[Record]) -> list[Record]:
    """Return correct and incorrect rollouts alternating, at most one of each kind for a problem."""
    seen: dict[tuple[bool, str], Record] = {}
    for row in rows:
        seen.setdefault((row.get("status") == "correct", str(row.get("problem"))), row)
    right = [row for (is_right, _), row in seen.items() if is_right]
    wrong = [row for (is_right, _), row in seen.items() if not is_right]
    longest = max(len(right), len(wrong))
    return [row for i in range(longest) for row in (*right[i : i + 1], *wrong[i : i + 1])]


def edge_rollouts(folder: Path) -> tuple[list[Record], list[Record]]:
    """Return the rollouts of the first and of the last step, from rollouts.jsonl and its compressed earlier parts."""
    parts = [*sorted(folder.glob("rollouts-????.jsonl.gz")), folder / "rollouts.jsonl"]
    parts = [part for part in parts if part.exists() and part.stat().st_size]
    first: list[Record] = []
    last: list[Record] = []
    for row in rollouts(parts[0]) if parts else ():
        if first and row.get("step") != first[0].get("step"):
            break
        first.append(row)
    for row in rollouts(parts[-1]) if parts else ():
        if last and row.get("step") != last[0].get("step"):
            last = []
        last.append(row)
    return first, last


def rollouts(path: Path) -> Iterator[Record]:
    """Yield the records of one file of rollouts. Raise ValueError where a compressed file is damaged."""
    if path.suffix != ".gz":
        yield from read_lines(path)
        return
    try:
        with gzip.open(path) as lines:
            yield from whole_lines(lines, path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is damaged ({error}); restore or remove it") from None


def config_section(path: Path) -> str:
    """Return the run's settings as HTML, collapsed."""
    if not path.exists():
        return ""
    text = html.escape(path.read_text("utf-8", "replace"))
    return f"<details><summary>config.json</summary><pre>{text}</pre></details>"


def read_lines(path: Path) -> list[Record]:
    """Return the records of a run's file, an empty list where it does not exist."""
    if not path.exists():
        return []
    check_file(path)
    with path.open("rb") as lines:
        return list(whole_lines(lines, path))


def read_alarms(folder: Path) -> list[Record]:
    """Return the records of alarms.jsonl. Raise ValueError naming a line that lacks a field of an alarm."""
    path = folder / "alarms.jsonl"
    alarms = read_lines(path)
    for number, alarm in enumerate(alarms, 1):
        for name, kind in (("step", int), ("signs", dict), ("figures", dict), ("rollouts", list)):
            if not isinstance(alarm.get(name), kind):
                raise ValueError(
                    f"{path}, line {number}: {name} is {alarm.get(name)!r:.80}; expected a {kind.__name__}"
                )
        alarm["figures"] = present_names(alarm["figures"])
        alarm["rollouts"] = [present_names(row) for row in alarm["rollouts"]]
    return alarms


def whole_lines(lines: Iterable[bytes], path: Path) -> Iterator[Record]:
    """Yield each line as a record, with the names of today. NaN, which a run may log, is accepted.

    Skip a last line without a line end: a crash cut it off. Raise ValueError naming a line that is not a JSON object.
    """
    for number, line in enumerate(lines, 1):
        if line.endswith(b"\n"):
            yield present_names(parse_object(line, f"{path}, line {number}", finite=False))

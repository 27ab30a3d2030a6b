"""`rlvr report RUN`: curves, pass@k before and after, and sample rollouts of a run in one HTML file."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.core.files.write import check_replaceable, write_whole
from rlvr.core.printable import printable
from rlvr.runs.conclusions import conclusions_of
from rlvr.runs.log import read_events
from rlvr.runs.reading import Record, all_rollouts, check_run, read_alarms, read_lines
from rlvr.runs.records import (
    Masks,
    Part,
    describe_shuffled,
    is_graded,
    is_number,
    masks_of,
    mean_advantage,
    parts_of_rollout,
    pass_names,
    verdict_line,
    with_interval,
)

from ..arguments import Positional, parse
from . import curves
from .curves import MARK, series

TITLE = "<title>rlvr: "
POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">"
)
VIEWPORT = '<meta name="viewport" content="width=device-width, initial-scale=1">'
NO_MASKS = Masks()


@dataclass(frozen=True)
class ReportArgs:
    """Draw the curves and tables of a run: report.html and curves.png in its folder."""

    run: Positional[Path]
    """The run's folder."""


def main(argv: Sequence[str]) -> int:
    """Run `rlvr report RUN` and return its exit code."""
    folder = parse(ReportArgs, argv, prog="rlvr report").run
    check_run(folder)
    written = (folder / "report.html").exists()
    check_replaceable(folder / "report.html", "rlvr report:", (TITLE.encode(),))
    if not written:  # a report that exists vouches for the figure beside it
        check_replaceable(folder / "curves.png", "rlvr report:", (MARK.encode(),))
    print(write_report(folder))
    return 0


def write_report(folder: Path) -> Path:
    """Write curves.png and report.html into a run's folder and return the path of report.html.

    A missing file leaves out its section. Raise ValueError for a file with a damaged line.
    """
    metrics = read_lines(folder / "metrics.jsonl")
    evaluations = read_lines(folder / "eval.jsonl")
    alarms = read_alarms(folder)
    picture = curves.draw_curves(metrics, evaluations, alarms)
    sections = [
        f"<h1>{html.escape(folder.resolve().name)}</h1>",
        f"<p>{len(metrics)} steps, {len(evaluations)} evaluations.</p>",
        conclusions_section(folder),
        pass_table(evaluations),
        packs_table(evaluations),
        metrics_table(metrics),
    ]
    if picture is not None:
        write_whole(folder / "curves.png", picture)
        source = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
        sections.append(f'<div class="wide"><img class="curves" alt="curves" src="{source}"></div>')
    sections += [
        events_section(read_events(folder)),
        alarms_section(alarms),
        rollouts_section(folder),
        config_section(folder / "config.json"),
    ]
    path = folder / "report.html"
    write_whole(path, page(folder.resolve().name, "\n".join(filter(None, sections))))
    return path


def conclusions_section(folder: Path) -> str:
    """Return what a reader must not overlook: that the run got worse, or learned nothing."""
    try:
        lines = conclusions_of(folder)
    except ValueError as error:
        lines = [f"Whether the run ended below its start cannot be said: {error}."]
    return "\n".join(f"<p><strong>{html.escape(line)}</strong></p>" for line in lines)


def page(name: str, body: str) -> str:
    """Return the page. It loads nothing, and runs no script but its own (report.js)."""
    style, script = (Path(__file__).with_name(f"report.{kind}").read_text("utf-8") for kind in ("css", "js"))
    head = f'<html lang="en"><meta charset="utf-8">{POLICY}{VIEWPORT}{TITLE}{html.escape(name)}</title>'
    text = f"<!doctype html>\n{head}<style>{style}</style>\n<body>{body}\n"
    return f"{printable(text)}<script>{script}</script></body></html>\n"


def pass_table(evaluations: Sequence[Record]) -> str:
    """Return an HTML table of pass@k (and of a graded score) by evaluation, with intervals and the overall change."""
    names = [prefix + name for name in pass_names(evaluations) for prefix in ("", "strict_", "lenient_")]
    names = [name for name in names if any(name in row for row in evaluations)]
    names += ["score"] if is_graded(evaluations) else []
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
    found = [
        (pack, row.get("step"), held if isinstance(held, Mapping) else {})
        for row in evaluations
        if isinstance(row.get("packs"), Mapping)
        for pack, held in row["packs"].items()
    ]
    names = [prefix + name for name in pass_names(evaluations) for prefix in ("", "strict_", "lenient_")]
    names = [name for name in names if any(name in held for _, _, held in found)]
    rows = [
        [p, step, held.get("num_problems", ""), *(with_interval(held, n) for n in names)] for p, step, held in found
    ]
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

    lines = line(head, "th") + "".join(line(row, "td") for row in rows)
    return f'<div class="wide"><table>{lines}</table></div>'


def events_section(events: Sequence[Record]) -> str:
    """Return an HTML table of what happened to the run: time, step, kind and message of each event."""
    rows = [[str(event.get(name, "")) for name in ("time", "step", "kind", "message")] for event in events]
    return "<h2>Events</h2>" + table(["time", "after step", "kind", "what happened"], rows) if rows else ""


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


def rollouts_section(folder: Path) -> str:
    """Return the rollouts as HTML, to be browsed; "" for a run without rollouts."""
    content = browser(folder)
    hint = "<noscript><p>Scripts are off; `rlvr watch` shows the rollouts too.</p></noscript>"
    return f"<h2>Rollouts</h2>{hint}{content}" if content else ""


def sample(row: Record, masks: Masks = NO_MASKS) -> str:
    """Return one rollout as HTML: prompt, completion or turns, verdict, reward and advantage."""
    head, status = f"{row.get('problem')}, sample {row.get('sample')}: ", str(row.get("status"))
    words = (verdict_line(row) + describe_shuffled(row)).removeprefix(status)
    return (
        f'<article class=rollout><h4>{html.escape(head)}<span class="status {html.escape(status)}">'
        f"{html.escape(status)}</span>{html.escape(words)}</h4>{render_parts(parts_of_rollout(row, masks))}</article>"
    )


def config_section(path: Path) -> str:
    """Return the run's settings as HTML, collapsed."""
    if not path.exists():
        return ""
    text = html.escape(path.read_text("utf-8", "replace"))
    return f"<details><summary>config.json</summary><pre>{text}</pre></details>"


BUDGET = 20_000_000  # characters of all rollouts in a page; compressed, about a third in bytes
LONGEST_PART = 12_000  # characters of a prompt, a completion or a turn; the middle of longer ones is left out
TRUSTED = ("correct", "incorrect", "partial", "no_answer", "unparseable")  # verdicts about the answer itself
# The fields of a rollout in the page, in their order; then its verdict in words, and its parts.
FIELDS = ("step", "problem", "sample", "status", "reward", "advantage")


def is_notable(record: Record) -> bool:
    """Return whether a rollout calls for attention.

    It has no score, or the verifier did not judge its answer (error, timeout, ...); reward and monitor disagree; or it
    has a void turn.
    """
    turns = record.get("turns")
    void = isinstance(turns, list) and any(isinstance(turn, Mapping) and turn.get("void") for turn in turns)
    monitored = "monitor_status" in record and (record["monitor_status"] == "correct") != (
        record.get("status") == "correct"
    )
    return record.get("status") not in TRUSTED or monitored or void


def choose(strata: Sequence[Any], sizes: Sequence[int], budget: int = BUDGET) -> list[int]:
    """Return the numbers of the rollouts whose sizes add up to at most `budget`: all where they fit.

    Otherwise equally many of each stratum, as far as it has so many, so that a rare one is there in full. Which ones
    is drawn by a hash of their number: the same in every report of a run.
    """
    if sum(sizes) <= budget:
        return list(range(len(sizes)))
    ranks: Counter[Any] = Counter()
    order = []
    for number in sorted(range(len(sizes)), key=lambda n: hashlib.blake2b(n.to_bytes(8, "little")).digest()):
        ranks[strata[number]] += 1
        order.append((ranks[strata[number]], number))
    order.sort(key=lambda pair: pair[0])
    chosen = []
    for _, number in order:
        budget -= sizes[number]
        if budget < 0:
            break
        chosen.append(number)
    return sorted(chosen)


def pack_rollout(record: Record, masks: Masks) -> list[Any]:
    """Return what the page holds of a rollout: FIELDS, its verdict in words, and parts as [label, text, kind].

    kind: 1 where it is not trained on, plus 2 for a void turn. Control characters and direction marks are escaped.
    """
    parts = [
        [printable(part.label), printable(cut(part.text)), (not part.trained) + 2 * part.void]
        for part in parts_of_rollout(record, masks)
    ]
    values: dict[str, Any] = {**record, "advantage": mean_advantage(record)}
    for name in FIELDS:
        value = values.get(name)
        if name in ("problem", "status"):
            values[name] = printable(str(value))
        elif not is_number(value):
            values[name] = None
        elif name in ("reward", "advantage"):
            values[name] = float(f"{value:.4g}")  # what is not 0 stays so: it is filtered by its sign
    words = printable(verdict_line(record) + describe_shuffled(record))
    return [*(values[name] for name in FIELDS), words, parts]


def cut(text: str) -> str:
    """Return a text cut to LONGEST_PART characters. Its middle says how many are left out."""
    half = LONGEST_PART // 2
    if len(text) <= LONGEST_PART:
        return text
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"


def texts_of(folder: Path) -> Iterator[tuple[Record, str]]:
    """Yield the rollouts of a run, each with its packed form as JSON."""
    masks = masks_of(folder)
    for record in all_rollouts(folder):
        yield record, json.dumps(pack_rollout(record, masks), ensure_ascii=False, separators=(",", ":"))


def browser(folder: Path) -> str:
    """Return the section of a report in which a run's rollouts are browsed; "" for a run without rollouts."""
    strata, sizes = [], []
    for record, text in texts_of(folder):
        strata.append((record.get("step"), record.get("status"), is_notable(record)))
        sizes.append(len(text))
    if not sizes:
        return ""
    numbers = set(choose(strata, sizes))
    chosen = ",".join(text for number, (_, text) in enumerate(texts_of(folder)) if number in numbers)
    packed = base64.b64encode(gzip.compress(f"[{chosen}]".encode(), 6, mtime=0)).decode()
    note = f"All {len(sizes):,} rollouts are in this page."
    if len(numbers) < len(sizes):
        note = (
            f"{len(numbers):,} of {len(sizes):,} rollouts are in this page: equally many of every step and verdict, "
            "drawn at random, and of those that call for attention (with a void turn, or on which reward and monitor "
            "disagree). All are in rollouts.jsonl and its compressed parts; `rlvr watch` shows every step."
        )
    controls = Path(__file__).with_name("controls.html").read_text("utf-8")
    section = f'<section id="browser" hidden><p>{html.escape(note)}</p>\n{controls}</section>'
    return f'{section}<script type="application/gzip" id="rollouts">{packed}</script>\n'


def render_parts(parts: Iterable[Part]) -> str:
    """Return parts of a rollout as HTML, each with its label; those that are not trained on are greyed."""
    return "".join(
        f"<div class=label>{html.escape(part.label)}</div>"
        f'<pre class="{"own" if part.trained else "masked"}{" void" * part.void}">{html.escape(part.text)}</pre>'
        for part in parts
    )

"""The page of one run or several, and `rlvr report RUN`, which writes it as one file that works offline.

page.js draws it. It reads the same data from the file itself or, in `rlvr view`, from the server.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import urllib.parse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rlvr.core.files.write import check_replaceable, write_whole
from rlvr.core.printable import printable
from rlvr.runs.reading import answer_files, check_run
from rlvr.runs.records import masks_of

from ..arguments import Positional, parse
from .content import HERE, METRIC_ROWS, PANELS, Logs, content_of
from .rollouts import BUDGET, FLAGS, pack_answers, pack_run

TITLE = "<title>rlvr: "
VIEWPORT = '<meta name="viewport" content="width=device-width, initial-scale=1">'
FRAME = '<div id="page"></div><noscript>This page needs scripts.</noscript>'


@dataclass(frozen=True)
class ReportArgs:
    """Write the page of a run as one file that works offline: report.html in its folder."""

    run: Positional[Path]
    """The run's folder."""


@dataclass(frozen=True)
class Source:
    """A run in a page: its folder, its label, and the condition whose runs (seeds) share a colour and a mean."""

    folder: Path
    label: str
    condition: str


def main(argv: Sequence[str]) -> int:
    """Run `rlvr report RUN` and return its exit code."""
    folder = parse(ReportArgs, argv, prog="rlvr report").run
    check_run(folder)
    check_replaceable(folder / "report.html", "rlvr report:", (TITLE.encode(),))
    print(printable(str(write_report(folder))))
    return 0


def write_report(folder: Path) -> Path:
    """Write report.html into a run's folder and return its path. Raise ValueError for a file with a damaged line."""
    name = folder.resolve().name
    path = folder / "report.html"
    write_whole(path, page_of_runs(name, [Source(folder, name, name)]))
    return path


def page_of_runs(name: str, sources: Sequence[Source]) -> str:
    """Return the page of several runs with all that it reads. The texts of each get an equal share of BUDGET."""
    runs, blocks = [], []
    for number, source in enumerate(sources):
        masks = masks_of(source.folder)
        index, chunks, note = pack_run(source.folder, masks, BUDGET // len(sources))
        held = content_of(source.folder, Logs.read(source.folder))
        runs.append(held | {"label": source.label, "condition": source.condition, "note": note, "rollouts": len(index)})
        blocks.append(block(f"rollouts-{number}-0", json.dumps(index.after(0))))
        blocks += [block(f"texts-{number}-{place}", chunk) for place, chunk in enumerate(chunks)]
        for step, file in answer_files(source.folder).items():
            blocks.append(block(f"answers-{number}-{step}", pack_answers(file, masks)))
    return live_page(name, {"live": False, "runs": runs}, blocks)


def page_of_curves(name: str, sources: Sequence[Source], body: str) -> str:
    """Return a page that begins with `body` (HTML) and then has the curves of runs, and nothing else of them."""
    runs = [
        content_of(source.folder, Logs.read(source.folder))
        | {"label": source.label, "condition": source.condition, "note": "", "rollouts": 0, "answers": []}
        for source in sources
    ]
    return live_page(name, {"live": False, "views": ["curves"], "runs": runs}, body=body) if runs else page(name, body)


def live_page(name: str, data: dict[str, Any], blocks: Iterable[str] = (), *, body: str = "") -> str:
    """Return the page with its data: of all runs, or none where it asks a server for them. body: HTML before it."""
    data |= {"panels": PANELS, "meanings": METRIC_ROWS, "flags": FLAGS}
    script = HERE.joinpath("page.js").read_text("utf-8")
    held = [f'<script type="application/json" id="data">{as_script(json.dumps(data))}</script>', *blocks]
    scripts = [read("uplot/uPlot.iife.min.js"), script]
    return page(name, body + FRAME + "\n".join(held), scripts, connect=bool(data["live"]))


def page(name: str, body: str, scripts: Sequence[str] = (), *, connect: bool = False) -> str:
    """Return a page that loads nothing. Only `scripts` and its own styles run: their hashes are in its policy.

    body: HTML. connect: whether scripts may ask the server that the page came from.
    """
    styles = [read("uplot/uPlot.min.css"), read("page.css")]
    policy = (
        f"default-src 'none'; img-src data:; connect-src {quote('self') if connect else quote('none')}; "
        f"base-uri 'none'; form-action 'none'; "
        f"script-src {' '.join(map(digest, scripts)) or quote('none')}; style-src {' '.join(map(digest, styles))}"
    )
    head = f'<html lang="en"><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
    shown = printable(f"{head}{VIEWPORT}{TITLE}{html.escape(name)}</title>")
    parts = [f"<style>{style}</style>" for style in styles]
    ends = [f"<script>{script}</script>" for script in scripts]
    return f"<!doctype html>\n{shown}{''.join(parts)}<body>{printable(body)}\n{''.join(ends)}</body></html>\n"


@cache
def read(name: str) -> str:
    """Return a file of this folder, which is part of every page."""
    return HERE.joinpath(name).read_text("utf-8")


def quote(word: str) -> str:
    """Return a word of a policy in its quotes."""
    return f"'{word}'"


def digest(text: str) -> str:
    """Return the source of a policy that allows exactly this script or style."""
    return quote(f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}")


def block(name: str, text: str) -> str:
    """Return compressed data in a script element that does not run."""
    packed = base64.b64encode(gzip.compress(text.encode("utf-8", "surrogatepass"), 6, mtime=0)).decode()
    return f'<script type="application/gzip" id="{name}">{packed}</script>'


def as_script(text: str) -> str:
    """Return JSON that can stand in a script element: no `<` ends it, and no character in it is hidden."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@dataclass(frozen=True)
class Link:
    """A cell of a table that leads to another file, by its path from the page's folder."""

    text: str
    path: Path

    def __str__(self) -> str:
        return f'<a href="{html.escape(urllib.parse.quote(self.path.as_posix()))}">{html.escape(self.text)}</a>'


def table(head: Iterable[Any], rows: Iterable[Iterable[Any]]) -> str:
    """Return an HTML table; every cell is escaped, or a Link."""

    def line(cells: Iterable[Any], tag: str) -> str:
        shown = (str(cell) if isinstance(cell, Link) else html.escape(str(cell)) for cell in cells)
        return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in shown) + "</tr>"

    lines = line(head, "th") + "".join(line(row, "td") for row in rows)
    return f'<div class="wide"><table>{lines}</table></div>'

"""`rlvr view RUN [RUN ...]`: the page of runs in a browser, which follows them while they train."""

from __future__ import annotations

import gzip
import hmac
import json
import secrets
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

from rlvr.config.settings import Bound
from rlvr.core.printable import printable
from rlvr.runs.log import EVENTS
from rlvr.runs.reading import (
    LiveLogs,
    Record,
    Tail,
    answer_files,
    check_run,
    part_lines,
    parts_of,
    read_object,
)
from rlvr.runs.records import masks_of

from ..arguments import Positional, parse
from .content import Logs, content_of
from .page import Source, live_page
from .rollouts import RolloutIndex, pack_answers, pack_texts
from .texts import HeldRollouts

LOGS = ("metrics.jsonl", "eval.jsonl", "config.json")
COMPRESSED = 1000  # bytes from which on an answer is sent compressed


@dataclass(frozen=True)
class ViewArgs:
    """Show runs in a browser while they train: curves, problems, held-out answers, rollouts. Ctrl-C ends it."""

    runs: Positional[tuple[Path, ...]] = ()
    """Folders of runs, or folders that hold some; runs that appear in one later come onto the page."""
    host: str = "127.0.0.1"
    """Address to listen on. Beyond this machine (such as 0.0.0.0) the page's URL has a token."""
    port: Annotated[int, Bound(0, 65535)] = 8765
    """Port to listen on. 0: any free one."""


def main(argv: Sequence[str]) -> int:
    """Run `rlvr view RUN [RUN ...]` until Ctrl-C, and return its exit code."""
    args = parse(ViewArgs, argv, prog="rlvr view")
    if not args.runs:
        raise ValueError("name at least one run, or a folder with some: rlvr view RUN [RUN ...]")
    with open_server(args.runs, args.host, args.port) as server:
        print(printable(server.url), flush=True)
        try:
            server.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            return 0
    return 0


def find_runs(folders: Sequence[Path]) -> list[Source]:
    """Return the runs in folders, each a run or with some inside. Raise FileNotFoundError for one without any."""
    found: dict[Path, None] = {}
    for folder in folders:
        inside = [folder] if is_run(folder) else sorted(path for path in folder.glob("*") if is_run(path))
        if not inside:
            check_run(folder, LOGS)
        found.update(dict.fromkeys(inside))
    names = [path.resolve().name for path in found]
    labels = [name if names.count(name) == 1 else str(path) for path, name in zip(found, names)]
    return [Source(path, label, label) for path, label in zip(found, labels)]


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run."""
    return any((folder / name).is_file() for name in LOGS)


class LiveRun:
    """A run that is followed: its logs, and the index of its rollouts. `refresh` reads what was written since."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.state = LiveLogs(source.folder)
        self.events: list[dict[str, Any]] = []
        self._events, self._rollouts = Tail(source.folder / EVENTS), Tail(source.folder / "rollouts.jsonl")
        self._indexed_anew = -1
        self._begin_index()
        self.refresh()

    @property
    def generation(self) -> int:
        """A number that changes where lines of a log were taken back: whoever holds them must read all again."""
        return self.state.generation + self._indexed_anew

    def _begin_index(self) -> None:
        self.index, self.held = RolloutIndex(), HeldRollouts()
        self._indexed_anew += 1
        for part in parts_of(self.source.folder):
            self.index.add(self._records(part_lines(part)))

    def _records(self, lines: Iterable[bytes]) -> Iterator[Record]:
        for line in lines:
            if (record := read_object(line)) is not None:
                self.held.add(line, record)
                yield record

    def refresh(self) -> None:
        """Read what has been written since the last call."""
        self.state.refresh()
        again, events = self._events.records()
        self.events = events if again else self.events + events
        again, lines, _ = self._rollouts.read()
        if again:
            self._begin_index()
        self.index.add(self._records(lines))

    def content(self, generation: int, first: int) -> dict[str, Any]:
        """Return what the page holds of the run, with the metrics that it lacks: all where lines were taken back."""
        state = self.state
        logs = Logs(state.metrics, state.evaluations, state.alarms, self.events)
        first = first if generation == self.generation else 0
        held = content_of(self.source.folder, logs, first, running=state.running)
        named = {"label": self.source.label, "condition": self.source.condition}
        return held | named | {"note": "", "rollouts": len(self.index), "generation": self.generation}

    def texts(self, numbers: Sequence[int]) -> str:
        """Return the texts of rollouts as JSON. Raise IndexError for a number that there is not."""
        return f"[{pack_texts(self.held.records(numbers), masks_of(self.source.folder))}]"

    def answers(self, step: int) -> str:
        """Return the held-out answers after a step as JSON, an empty list where none were kept."""
        file = answer_files(self.source.folder).get(step)
        return "[]" if file is None else pack_answers(file, masks_of(self.source.folder))


class PageServer(ThreadingHTTPServer):
    """Serves the page and the data of the given runs: whatever is asked for, no other file is read.

    Beyond the loopback interface every request needs the token of `url`; on it, the name of the host must be local, so
    that no other page can read the runs through a name of its own.
    """

    daemon_threads = True

    def __init__(self, folders: Sequence[Path], host: str, port: int) -> None:
        self.folders = folders
        sources = find_runs(folders)
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), Handler)  # first, since reading long runs takes seconds
        self.runs = [LiveRun(source) for source in sources]
        self.lock = threading.Lock()
        self.local = is_local(host)
        self.token = "" if self.local else secrets.token_urlsafe(24)
        name = f"[{host}]" if ":" in host else host
        self.url = f"http://{name}:{self.server_port}/" + (f"?token={self.token}" if self.token else "")

    def answer(self, path: str, asked: dict[str, str]) -> tuple[str, str | bytes] | None:
        """Return the kind and the content of an answer; None for anything that there is not."""
        if path == "/":
            name = ", ".join(run.source.label for run in self.runs)
            return "text/html", live_page(name, {"live": True, "runs": []})
        try:
            with self.lock:
                found = self._data(path, asked)
            return "application/json" if isinstance(found, str) else "application/octet-stream", found
        except (LookupError, ValueError):
            return None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error of a request; a page that was closed while it was answered is none."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def _data(self, path: str, asked: dict[str, str]) -> str | bytes:
        if path == "/runs":
            have = read_have(asked["have"])
            for run in self.runs:
                run.refresh()
            self._add_new()
            have += [(0, 0)] * (len(self.runs) - len(have))
            return json.dumps([run.content(*held) for run, held in zip(self.runs, have, strict=True)])
        run = self.runs[whole_number(asked["run"])]
        if path == "/rollouts":
            return json.dumps(run.index.after(whole_number(asked["number"])))
        if path == "/search":
            return run.held.search(asked["text"])
        if path == "/texts":
            return run.texts([whole_number(number) for number in asked["numbers"].split(",")])
        return {"/answers": run.answers}[path](whole_number(asked["number"]))

    def _add_new(self) -> None:
        """Follow the runs that have appeared in the folders. Those that are known keep place and label."""
        known = {run.source.folder: run.source.label for run in self.runs}
        with suppress(FileNotFoundError):  # a folder that is gone
            for source in find_runs(self.folders):
                if source.folder not in known:
                    label = str(source.folder) if source.label in known.values() else source.label
                    self.runs.append(LiveRun(Source(source.folder, label, label)))


def whole_number(text: str) -> int:
    """Return a number that is not negative. Raise ValueError for anything else."""
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def read_have(text: str) -> list[tuple[int, int]]:
    """Return what a page has of each run, (generation, rows of metrics). Raise ValueError for anything else."""
    have = json.loads(text)
    if not isinstance(have, list) or not all(isinstance(own, list) and len(own) == 2 for own in have):
        raise ValueError(text)
    if not all(isinstance(number, int) and number >= 0 for own in have for number in own):
        raise ValueError(text)
    return [(generation, first) for generation, first in have]


def is_local(host: str) -> bool:
    """Return whether a host is the loopback interface of this machine."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def open_server(folders: Sequence[Path], host: str, port: int) -> PageServer:
    """Return a server of the runs in folders that listens. Raise ValueError for an address that cannot be listened on,
    FileNotFoundError for a folder without a run.
    """
    find_runs(folders)  # here, since its error is an OSError too
    try:
        return PageServer(folders, host, port)
    except OSError as error:
        raise ValueError(f"--host {host} --port {port}: {error.strerror or error}; --port 0 takes a free one") from None


class Handler(BaseHTTPRequestHandler):
    """Answers GET requests of the page."""

    server: PageServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer with the page, with data, or with an error without a text."""
        url = urlsplit(self.path)
        asked = {name: values[-1] for name, values in parse_qs(url.query).items()}
        if not self._is_allowed(asked):
            return self._send(HTTPStatus.FORBIDDEN, "text/plain", "The URL that `rlvr view` printed has a token.\n")
        found = self.server.answer(url.path, asked)
        if found is None:
            return self._send(HTTPStatus.NOT_FOUND, "text/plain", "Not found.\n")
        self._send(HTTPStatus.OK, *found)

    def _is_allowed(self, asked: dict[str, str]) -> bool:
        if self.server.token:
            return hmac.compare_digest(asked.get("token", "").encode(), self.server.token.encode())
        return is_local(urlsplit(f"//{self.headers.get('Host', '')}").hostname or "")

    def _send(self, status: HTTPStatus, kind: str, content: str | bytes) -> None:
        body = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
        self.send_response(status)
        if len(body) > COMPRESSED and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, 1)
            self.send_header("Content-Encoding", "gzip")
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the terminal has the URL."""

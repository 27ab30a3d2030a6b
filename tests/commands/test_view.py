"""`rlvr view`: what its server gives to whom, and the page that follows a run while it trains."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from rlvr.commands.report import texts
from rlvr.commands.report.page import live_page
from rlvr.commands.report.server import PageServer, find_runs, is_local, open_server
from rlvr.launch import launch
from tests.helpers import chromium
from tests.helpers.pages import log_sample, write_answers, write_lines, write_run
from tests.helpers.runs import tiny
from tests.helpers.verifiers import sums


@contextmanager
def serving(*folders: Path, host: str = "127.0.0.1") -> Iterator[PageServer]:
    """A server of runs on a free port, in a thread."""
    with open_server(folders, host, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def get(server: PageServer, path: str, *, host: str = "", method: str = "GET", **query: Any) -> tuple[int, str]:
    """Return status and text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    connection.request(method, f"{path}?{urlencode(query)}" if query else path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def ask(server: PageServer, path: str, **query: Any) -> Any:
    status, text = get(server, path, **query)
    assert status == 200, path
    return json.loads(text)


def search(server: PageServer, text: str) -> list[int]:
    """Return the numbers of the rollouts that a search finds."""
    status, found = get(server, "/search", run=0, text=text)
    assert (status, set(found) <= {"\0", "\1"}) == (200, True)
    return [number for number, mark in enumerate(found) if mark == "\1"]


def test_what_was_written_since_is_given(tmp_path):
    """Metrics from a row on, rollouts from a number on; the texts of rollouts, the answers of an evaluation."""
    folder = write_run(tmp_path, [log_sample(1, i) for i in range(4)])
    write_answers(folder, 0, {"a": "10"})
    with serving(folder) as server:
        (run,) = ask(server, "/runs", have="[]")
        assert (run["metrics"], run["rollouts"], run["answers"]) == ({"step": [1], "reward": [0.5]}, 4, [0])
        with (folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 2, "reward": 0.75, "kl": 1}\n{"step": 3, "rew')
        with (folder / "rollouts.jsonl").open("a") as file:
            file.write(json.dumps(log_sample(2, 0, completion="the second")) + "\n")
        (run,) = ask(server, "/runs", have=json.dumps([[run["generation"], 1]]))
        assert run["metrics"] == {"step": [2], "reward": [0.75], "kl": [1]}
        assert ask(server, "/rollouts", run=0, number=4)["columns"]["step"] == [2]
        assert [row[2][-1][2] for row in ask(server, "/texts", run=0, numbers="4,0")] == ["the second", "2"]
        assert [row["problem"] for row in ask(server, "/answers", run=0, number=0)] == ["a"]
        assert ask(server, "/answers", run=0, number=7) == []


def test_lines_that_are_taken_back_begin_anew(tmp_path):
    """A resume truncates the logs: the generation changes, and all is given again."""
    folder = write_run(
        tmp_path, [log_sample(s, i) for s in (1, 2) for i in range(4)], metrics=[{"step": 1}, {"step": 2}]
    )
    with serving(folder) as server:
        (before,) = ask(server, "/runs", have="[]")
        write_run(folder, [log_sample(1, i, "incorrect") for i in range(4)], metrics=[{"step": 1, "reward": 9}])
        (after,) = ask(server, "/runs", have=json.dumps([[before["generation"], 2]]))
        assert after["generation"] != before["generation"]
        assert after["metrics"] == {"step": [1], "reward": [9]}
        assert after["rollouts"] == 4
        assert ask(server, "/rollouts", run=0, number=0)["names"]["status"] == ["incorrect"]


def test_rollouts_of_compressed_parts_and_damaged_lines(tmp_path):
    """Texts in a part; a damaged line is left out, and the numbers that a search finds fit the others."""
    folder = write_run(tmp_path, [log_sample(2, i, completion=f'Say "{i}"') for i in range(3)])
    write_lines(folder / "rollouts-0000.jsonl.gz", [log_sample(1, i, completion=f"first {i}") for i in range(3)])
    lines = (folder / "rollouts.jsonl").read_text().splitlines(keepends=True)
    (folder / "rollouts.jsonl").write_text("".join([lines[0], "{damaged\n", *lines[1:]]))
    with serving(folder) as server:
        assert len(ask(server, "/rollouts", run=0, number=0)["columns"]["step"]) == 6
        found = ask(server, "/texts", run=0, numbers="2,4,0")
        assert [row[2][-1][2] for row in found] == ["first 2", 'Say "1"', "first 0"]
        assert search(server, 'say "1"') == [4]
        assert search(server, "FIRST") == [0, 1, 2]
        assert search(server, "completion") == []  # a name of the log is no text


OTHERS = [
    "/etc/passwd", "/../secret", "/..%2fsecret", "//etc/passwd", "/report.html", "/config.json", "/texts", "/runs",
    "/texts?run=0&numbers=../../secret", "/texts?run=1&numbers=0", "/texts?run=-1&numbers=0", "/texts?run=0&numbers=1",
    "/texts?run=0&numbers=-1", "/answers?run=0&number=..",
    "/rollouts?run=x&number=0", "/runs?have=[[0]]", "/runs?have={", "/search?run=0",
]  # fmt: skip


@pytest.mark.parametrize("path", OTHERS)
def test_nothing_else_can_be_read(tmp_path, path):
    """Another path, another run, a name instead of a number: not found. The run beside the named one stays unread."""
    (tmp_path / "secret").write_text("secret")
    write_run(tmp_path / "beside", [log_sample(1, 0, completion="secret")])
    with serving(write_run(tmp_path / "run", [log_sample(1, 0)])) as server:
        status, text = get(server, path)
    assert status == 404
    assert "secret" not in text


@pytest.mark.parametrize(
    ("host", "status"), [("localhost:1", 200), ("[::1]", 200), ("evil.example", 403), ("a.127.0.0.1.nip.io", 403)]
)
def test_only_a_local_name_is_answered(tmp_path, host, status):
    """Otherwise a page elsewhere could read the runs through a name of its own that leads here."""
    with serving(write_run(tmp_path)) as server:
        assert get(server, "/", host=host)[0] == status


def test_beyond_this_machine_a_token_is_needed(tmp_path):
    """It is in the URL that is printed, and no request is answered without; another method is not either."""
    with serving(write_run(tmp_path), host="0.0.0.0") as server:
        token = server.url.partition("?token=")[2]
        assert len(token) >= 24
        for query in ({}, {"token": ""}, {"token": token[:-1]}, {"token": "é"}):
            for path in ("/", "/runs"):
                assert get(server, path, have="[]", **query)[0] == 403
        assert get(server, "/runs", have="[]", token=token)[0] == 200
        assert get(server, "/", method="POST", token=token)[0] == 501
    with serving(tmp_path) as server:
        assert "token" not in server.url


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("", False)]
)
def test_hosts_of_this_machine(host, local):
    assert is_local(host) == local


def test_a_folder_of_runs(tmp_path):
    """Its runs by name; a run that is named twice is one; two of one name are told apart."""
    for name in ("b/run", "a/run", "a/other"):
        write_run(tmp_path / name)
    assert [source.label for source in find_runs([tmp_path / "a"])] == ["other", "run"]
    assert len(find_runs([tmp_path / "a", tmp_path / "a/run"])) == 2
    assert [source.label for source in find_runs([tmp_path / "a/run", tmp_path / "b/run"])] == [
        str(tmp_path / "a/run"),
        str(tmp_path / "b/run"),
    ]
    with pytest.raises(FileNotFoundError, match="expected the folder of a run"):
        find_runs([tmp_path])


def test_a_port_in_use_is_said_in_one_line(tmp_path):
    with serving(write_run(tmp_path)) as server, pytest.raises(ValueError, match="--port 0 takes a free one"):
        open_server([tmp_path], "127.0.0.1", server.server_port)


def test_a_page_that_is_closed_while_it_is_answered_is_no_error(tmp_path, capsys):
    """Any other exception is printed with its traceback."""
    with serving(write_run(tmp_path, [log_sample(1, 0)])) as server:
        for error in (ConnectionResetError(104, "Connection reset by peer"), BrokenPipeError(), KeyError("mine")):
            try:
                raise error
            except (OSError, KeyError):
                server.handle_error(None, ("127.0.0.1", 1))
    shown = capsys.readouterr().err
    assert "KeyError: 'mine'" in shown
    assert "Connection" not in shown
    assert "BrokenPipe" not in shown


def test_the_live_page_may_ask_its_server_alone():
    text = live_page("x", {"live": True, "runs": []})
    assert "connect-src 'self'" in text
    assert "default-src 'none'" in text


needs_chromium = pytest.mark.skipif(chromium.PROGRAM is None, reason="no Chromium (Debian: apt-get install chromium)")


@needs_chromium
def test_a_page_follows_a_run_that_trains(tmp_path):
    """Its curves, its state and its rollouts grow without a reload; nothing beside the server is asked."""
    folder = tmp_path / "run"
    settings = {"steps": 4, "sample_every": 0}
    config = tiny(folder, run=settings, eval={"every": 2, "num_problems": 2, "samples": 2, "k": (1,)})
    training = threading.Thread(target=launch, args=(config,), kwargs={"task": sums()})
    write_run(tmp_path / "still", [log_sample(1, 0)])
    with chromium.open_page() as page:
        training.start()
        deadline = time.monotonic() + 60
        while not (folder / "config.json").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        with serving(folder, tmp_path / "still") as server:
            page.resize(1200, 900)
            page.visit(server.url)
            page.until("document.body?.dataset.ready")
            page.evaluate("document.querySelector('details').open = true")
            page.until("document.body.dataset.steps === '4'", 120)
            training.join()
            page.until("document.querySelector('main').textContent.includes('ended, step 4 of 4')")
            page.until("document.querySelector('main').textContent.includes('Held-out pass@1 went from')")
            assert page.evaluate("document.querySelector('details').open")  # what was opened stays so
            page.evaluate("location.hash = '#rollouts?order=last'")
            page.until("document.querySelectorAll('.card').length === 20")
            assert page.evaluate("document.querySelector('.card h3').textContent").startswith("step 4, ")
            page.evaluate("location.hash = '#held-out'")
            page.until("document.querySelector('main').textContent.includes('2 problems in both')")
            assert {url.split("?")[0].rpartition("/")[0] for url in page.requested} == {server.url.rstrip("/")}


@needs_chromium
def test_runs_that_appear_in_a_folder_come_onto_the_page(tmp_path):
    """By themselves, also curves of metrics that a run logs later; a run of a known name gets its path for a label."""
    write_run(tmp_path / "first", [log_sample(1, 0)], metrics=[{"step": 1}])
    with chromium.open_page() as page, serving(tmp_path) as server:
        page.resize(1200, 900)
        page.visit(server.url + "#curves")
        page.until("document.body?.dataset.ready")
        assert page.evaluate("document.querySelectorAll('.panel').length") == 2  # made of the rollouts
        write_run(tmp_path / "first", [log_sample(1, 0)], metrics=[{"step": i, "reward": 0.5} for i in (1, 2)])
        page.until("document.querySelector('main').textContent.includes('reward of the training problems')")
        write_run(tmp_path / "second", [log_sample(1, 0, completion="of the second")], metrics=[{"step": 1, "kl": 1}])
        page.until("document.querySelector('main').textContent.includes('KL to the reference')")
        page.evaluate("location.hash = '#rollouts?run=second'")
        page.until("document.querySelector('.card')?.textContent.includes('of the second')")
        page.evaluate("location.hash = '#overview'")
        page.until("document.querySelectorAll('tbody tr').length >= 2")


def test_a_new_run_keeps_the_others_in_their_places(tmp_path):
    """What the page knows by number stays; two of one name are told apart; a folder that is gone is no error."""
    one, other = tmp_path / "b", tmp_path / "a"
    write_run(one / "run", [log_sample(1, 0)])
    write_run(other / "older", [log_sample(1, 0)])
    with serving(one, other) as server:
        assert [run["label"] for run in ask(server, "/runs", have="[]")] == ["run", "older"]
        write_run(other / "run", [log_sample(1, 0)])
        labels = [run["label"] for run in ask(server, "/runs", have="[[0, 1], [0, 1]]")]
        assert labels == ["run", "older", str(other / "run")]
        shutil.rmtree(one)
        assert len(ask(server, "/runs", have="[]")) == 3


@pytest.mark.parametrize("held", [10**9, 4000, -1])
def test_a_search_finds_the_same_however_much_is_held(tmp_path, monkeypatch, held):
    """Texts that are held and texts that are not, in full blocks and in the last one; none across two rollouts."""
    monkeypatch.setattr(texts, "SEARCHABLE", held)
    rows = [log_sample(1 + i, 0, completion=f"Said {i}", prompt=f"ask{i}") for i in range(3 * texts.BLOCK)]
    with serving(write_run(tmp_path, rows)) as server:
        assert search(server, "SAID 2") == [i for i in range(len(rows)) if str(i).startswith("2")]
        assert search(server, "ask300") == [300]
        assert search(server, "d") == list(range(len(rows)))
        assert search(server, "0ask") == []
        with (tmp_path / "rollouts.jsonl").open("a") as file:
            file.write(json.dumps(log_sample(31, 0, completion="the last")) + "\n")
        ask(server, "/runs", have="[]")
        assert search(server, "the last") == [len(rows)]
        assert ask(server, "/texts", run=0, numbers=str(len(rows)))[0][2][-1][2] == "the last"


def test_the_command_prints_its_url_and_ends_at_an_interrupt(tmp_path):
    """One line on standard output; exit code 0 and no traceback after Ctrl-C."""
    command = [sys.executable, "-m", "rlvr", "view", str(write_run(tmp_path)), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with urlopen(url, timeout=30) as answer:
            assert b'id="page"' in answer.read()
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out, errors) == (0, "", "")

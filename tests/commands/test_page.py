"""The page in a headless Chromium: what a person sees and does there. Without Chromium these tests are skipped."""

from __future__ import annotations

import gzip
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvr.commands.report.compare import main as compare
from rlvr.commands.report.page import write_report
from tests.helpers import chromium
from tests.helpers.pages import TURNS, log_sample, read_columns, read_texts, write_answers, write_lines, write_run

pytestmark = pytest.mark.skipif(chromium.PROGRAM is None, reason="no Chromium (Debian: apt-get install chromium)")


@pytest.fixture(scope="module")
def page() -> Iterator[chromium.Page]:
    """One tab for all tests of this file, which notes every error of a page's script."""
    with chromium.open_page() as opened:
        opened.call(
            "Page.addScriptToEvaluateOnNewDocument",
            source="window.errors = []; addEventListener('error', (e) => errors.push(String(e.message)));"
            "addEventListener('unhandledrejection', (e) => errors.push(String(e.reason)));",
        )
        yield opened


def show(page: chromium.Page, path: Path, hash: str = "", *, width: int = 1200, scheme: str = "light") -> None:
    """Load a page and wait until all of it is read."""
    page.resize(width, 900, scheme=scheme)
    page.load(path, hash)
    page.until("document.body?.dataset.ready")
    assert page.evaluate("window.errors") == []


def go(page: chromium.Page, hash: str) -> None:
    """Follow a link within the page, and wait until its view is there."""
    page.evaluate(f"location.hash = {json.dumps(hash)}")
    page.until(f"document.body.dataset.shown === location.hash && location.hash === {json.dumps(hash)}")


def texts(page: chromium.Page, selector: str) -> list[str]:
    return page.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)")


def fill(page: chromium.Page, **values: str) -> list[str]:
    """Fill in the filters of the rollouts, wait for the new list, and return its headings."""
    page.evaluate("document.querySelector('.cards').dataset.old = 1")
    for name, value in values.items():
        page.evaluate(f"document.querySelector('form').elements[{name!r}].value = {value!r}")
        page.evaluate(
            f"for (const kind of ['input', 'change']) document.querySelector('form').elements[{name!r}]"
            ".dispatchEvent(new Event(kind, {bubbles: true}))"
        )
    page.until("document.querySelector('.cards') && !document.querySelector('.cards').dataset.old")
    time.sleep(0.2)  # the last of several filters
    return texts(page, ".card h3")


def log_steps(count: int, **more: Any) -> list[dict[str, Any]]:
    return [
        {"step": i, "reward": i / count, "entropy": 1 / i, "status/correct": 0.5, "status/limit": 0.5} | more
        for i in range(1, count + 1)
    ]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Forty steps with rollouts, two evaluations with answers, and events."""
    rows = [
        log_sample(1 + i // 8, i % 8, ("correct", "incorrect")[(i // 4) % 2], completion=f"said{i}.")
        for i in range(320)
    ]
    folder = write_run(tmp_path / "run", rows, metrics=log_steps(40))
    write_lines(
        folder / "eval.jsonl",
        [
            {"step": step, "pass@1": rate, "pass@1_ci": [rate - 0.1, rate + 0.1], "num_problems": 3}
            for step, rate in ((0, 0.4), (40, 0.6))
        ],
    )
    write_lines(
        folder / "events.jsonl", [{"time": "now", "step": 20, "kind": "resume", "message": "resuming from step 20"}]
    )
    write_answers(folder, 0, {"a": "00", "b": "11", "c": "10"})
    write_answers(folder, 40, {"a": "11", "b": "00", "c": "10"})
    return folder


def test_tabs_and_keys(run, page):
    """Every view opens by its link and by its number; nothing is asked of the network, and no script fails."""
    show(page, write_report(run))
    assert "went from 0.400 [0.300, 0.500] to 0.600" in page.evaluate("document.querySelector('.result').textContent")
    views = texts(page, "nav a")
    assert views == ["overview", "curves", "problems", "held-out", "rollouts", "settings"]
    for number, view in enumerate(views, 1):
        page.evaluate(f"document.body.dispatchEvent(new KeyboardEvent('keydown', {{key: '{number}', bubbles: true}}))")
        page.until(f"document.body.dataset.view === {json.dumps(view)}")
    assert page.evaluate("window.errors") == []
    assert {url.partition(":")[0] for url in page.requested} <= {"file", "data"}
    go(page, "#rollouts?")
    page.evaluate("document.body.dispatchEvent(new KeyboardEvent('keydown', {key: '/', bubbles: true}))")
    assert page.evaluate("document.activeElement.name") == "text"


def test_curves_zoom_pan_and_switches(run, page):
    """Dragging zooms every chart; shift and drag pans; keys and buttons; log axis; marks say what they are."""
    show(page, write_report(run), "#curves")
    page.until("document.querySelectorAll('.uplot').length > 3")
    assert page.evaluate("document.querySelector('.u-legend').textContent").startswith("step")
    box = page.evaluate(
        "(() => { const b = document.querySelector('.u-over').getBoundingClientRect();"
        "return [b.left, b.top, b.width, b.height] })()"
    )

    def mouse(kind: str, share: float, **more: Any) -> None:
        page.call(
            "Input.dispatchMouseEvent",
            type=kind,
            x=box[0] + share * box[2],
            y=box[1] + box[3] / 2,
            button="left",
            buttons=1,
            clickCount=1,
            **more,
        )

    for kind, share in (("mousePressed", 0.25), ("mouseMoved", 0.4), ("mouseMoved", 0.5), ("mouseReleased", 0.5)):
        mouse(kind, share)
    low, high = map(float, page.until("document.body.dataset.zoom").split())
    assert low == pytest.approx(10, abs=0.5)
    assert high == pytest.approx(20, abs=0.5)
    for kind, share in (("mousePressed", 0.5), ("mouseMoved", 0.25), ("mouseReleased", 0.25)):
        mouse(kind, share, modifiers=8)
    moved = [float(end) for end in page.evaluate("document.body.dataset.zoom").split()]
    assert moved == pytest.approx([low + (high - low) / 4, high + (high - low) / 4], abs=0.3)
    page.evaluate(
        "document.querySelector('.plot').dispatchEvent(new KeyboardEvent('keydown', {key: '0', bubbles: true}))"
    )
    assert page.evaluate("document.body.dataset.zoom") == ""
    page.evaluate("document.querySelector('[title=\"zoom in\"]').click()")
    assert page.evaluate("document.body.dataset.zoom") == "10.0 30.0"
    page.evaluate("document.querySelector('[title=\"all steps\"]').click()")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + box[2] / 2, y=box[1] + box[3] / 2)
    page.until("document.querySelector('.near').textContent.includes('step 20: resume, resuming from step 20')")
    for name in ("log", "events"):
        page.evaluate(f"document.querySelector('[name={name}]').click()")
    assert page.evaluate("window.errors") == []
    said = texts(page, ".panel details")
    assert any("entropy (nats per token): " in text and "Healthy: falls slowly, not to 0" in text for text in said)


def test_what_changed_at_a_step(tmp_path, page):
    """Means before and after, the largest change first, without times; a verdict that was not there counts as 0; events
    say more, and links lead to the rollouts and the held-out answers before and after.
    """
    metrics = [
        {"step": i, "reward": 0.9 if i <= 40 else 0.2, "noise": i % 7, "seconds/sample": 1.0} for i in range(1, 61)
    ]
    for row in metrics[40:]:
        row |= {"status/timeout": 0.5, "seconds/sample": 9.0, "tokens_per_second": 1234.5}
    folder = write_run(tmp_path, [log_sample(45, 0, "timeout")], metrics=metrics)
    event = {"time": "now", "step": 40, "kind": "changed", "message": "rollout.timeout 10.0 -> 0.03"}
    write_lines(folder / "events.jsonl", [event])
    for step, rights in ((0, "11"), (40, "10"), (60, "00")):
        write_answers(folder, step, {"a": rights, "b": "11"})
    show(page, write_report(folder), "#overview")
    page.evaluate("[...document.querySelectorAll('td a')].find((e) => e.textContent === '40').click()")
    page.until("document.body.dataset.shown === '#curves?at=40'")
    rows = texts(page, "table:not(.u-legend) tbody tr")
    assert {row.split("0")[0] for row in rows[:2]} == {"reward", "status/timeout"}
    assert next(row for row in rows if row.startswith("status/timeout")).startswith("status/timeout00.5rollouts with")
    assert len(rows) == 3
    assert texts(page, ".around a") == [
        "rollouts of steps 31 to 40",
        "rollouts of steps 41 to 50",
        "held-out problems that regressed from step 0 to 60",
    ]
    assert "after step 40, changed: rollout.timeout 10.0 -> 0.03" in texts(page, "#view-curves > p")
    page.evaluate("document.querySelector('[name=at]').value = '20'")
    page.evaluate("document.querySelector('[name=at]').dispatchEvent(new Event('change'))")
    page.until("document.body.dataset.shown === '#curves?at=20'")
    assert [row[:5] for row in texts(page, "table:not(.u-legend) tbody tr")] == ["noise"]
    go(page, "#curves?at=40")
    page.evaluate("[...document.querySelectorAll('td a')].find((e) => e.textContent === 'status/timeout').click()")
    page.until("document.body.dataset.view === 'rollouts'")
    assert [text.split(":")[0] for text in texts(page, ".card h3")] == ["step 45, p0, sample 0"]
    go(page, "#curves?at=40")
    page.evaluate("[...document.querySelectorAll('.around a')].pop().click()")
    page.until("document.body.dataset.view === 'held-out'")
    assert texts(page, ".card summary") == ["a 100 % → 0 % What is a?"]


def test_problems_are_sorted_by_what_became_of_them(tmp_path, page):
    """never, learned, forgotten; the table, the heat map, and the way to a problem's rollouts. Where no problem came
    twice, the hardest are first.
    """
    marks = {"never": "0000", "learned": "0011", "forgotten": "1100", "always": "1111"}
    rows = [
        log_sample(step + 1, i, "correct" if marks[name][step] == "1" else "incorrect", problem=name)
        for step in range(4)
        for name in marks
        for i in range(2)
    ]
    show(page, write_report(write_run(tmp_path, rows)), "#problems")
    assert texts(page, "tbody td:nth-child(2)") == ["learned", "never solved", "always solved", "forgotten"]
    go(page, "#problems?kind=forgotten")
    assert texts(page, "tbody td:first-child") == ["forgotten"]
    assert texts(page, "tbody td") == ["forgotten", "forgotten", "4", "100 %", "0 %", "50 %", "4"]
    page.evaluate(
        "(() => { const c = document.querySelector('canvas'), b = c.getBoundingClientRect();"
        "c.dispatchEvent(new MouseEvent('click', {clientX: b.left + 2, clientY: b.top + 5})) })()"
    )
    page.until("location.hash.startsWith('#rollouts') && document.body.dataset.shown === location.hash")
    assert page.evaluate("location.hash") == f"#rollouts?run={tmp_path.name}&step=1&problem=forgotten"
    assert texts(page, ".history a") == ["step 1: 2/2", "step 2: 2/2", "step 3: 0/2", "step 4: 0/2"]
    assert len(texts(page, ".card")) == 2
    once = [log_sample(1, i, ("correct", "incorrect")[i // 4]) for i in range(8)]
    show(page, write_report(write_run(tmp_path / "once", once)), "#problems")
    assert texts(page, "tbody td:nth-child(2)") == ["never solved", "always solved"]


def test_two_evaluations_side_by_side(run, page):
    """Who improved, who regressed; a problem's answers of both beside each other; its link opens it."""
    show(page, write_report(run), "#held-out")
    assert "3 problems in both: 1 improved, 1 regressed" in page.evaluate(
        "document.querySelector('#view-held-out').textContent"
    )
    go(page, "#held-out?kind=regressed")
    assert [text.split(" ")[0] for text in texts(page, ".card summary")] == ["b"]
    page.evaluate("document.querySelector('.card').open = true")
    page.until("document.querySelectorAll('.answers').length === 1")
    assert texts(page, ".answers h3") == ["after step 0: 100 % right", "after step 40: 0 % right"]
    assert "b after 40, number 1" in texts(page, ".answers > div")[1]
    link = page.evaluate("document.querySelector('.card a').getAttribute('href')")
    show(page, run / "report.html", link)
    assert page.evaluate("document.querySelector('.card').open")


def test_what_made_problems_regress(tmp_path, page):
    """The same completion with another verdict, the same turns with another reply; not where the policy says more."""

    def turns(reply: str) -> dict[str, Any]:
        texts = (("assistant", "?z"), ("tool", reply), ("assistant", "=y"))
        return {"turns": [{"role": role, "text": text, "tokens": 1} for role, text in texts]}

    run = write_run(tmp_path)
    for step, verdict, reply, said in ((0, "1", "d", "12"), (40, "0", "busy", "13")):
        rights = dict.fromkeys(("same", "played", "other"), verdict)
        write_answers(run, step, rights)
        path = run / f"answers-{step:06d}.jsonl.gz"
        same, played, other = map(json.loads, gzip.decompress(path.read_bytes()).decode().splitlines())
        for row, more in ((same, {"completion": "12"}), (played, turns(reply)), (other, {"completion": said})):
            row["answers"][0] |= more
        write_lines(path, [same, played, other])
    show(page, write_report(run), "#held-out")
    assert [text[:60] for text in texts(page, "#view-held-out .warning")] == [
        "In 1 of 3 that regressed the same completion has another ver",
        "In 1 of 3 that regressed the environment gives another reply",
    ]


def test_filters_of_rollouts(run, page):
    """By step, problem, verdict, advantage and text; order; pages; a reload keeps them."""
    rows = [
        log_sample(
            1 + i // 10, i, ("correct", "incorrect")[i % 2], advantage=(i - 20) / 10, completion=f"said{i}.", tokens=i
        )
        for i in range(50)
    ]
    rows[7]["advantage"] = None
    write_lines(run / "rollouts.jsonl", rows)
    show(page, write_report(run), "#rollouts?order=logged")
    assert len(texts(page, ".card")) == 20
    page.evaluate("document.querySelector('[name=next]').click()")
    page.until("document.querySelector('output').textContent === '21 to 40 of 50 rollouts'")
    assert texts(page, ".card h3")[0].startswith("step 3, p5, sample 20: correct")
    assert len(fill(page, step="2")) == 10
    assert len(fill(page, step="4-5")) == 20
    assert fill(page, step="x") == []
    assert len(fill(page, step="", problem="P11")) == 4
    assert len(fill(page, problem="", advantage="none")) == 1
    assert fill(page, advantage="0")[0].startswith("step 3, p5, sample 20: correct, reward +1.000, advantage +0.000")
    assert fill(page, advantage="", order="high")[0].startswith("step 5, p12, sample 49")
    assert fill(page, order="last")[0].startswith("step 5, p10, sample 40")
    assert fill(page, order="longest")[0].startswith("step 5, p12, sample 49")
    assert fill(page, text="SAID31.") == ["step 4, p7, sample 31: incorrect, reward +0.000, advantage +1.100"]
    assert "text=SAID31." in page.evaluate("location.hash")
    page.call("Page.reload")
    page.until("document.body?.dataset.ready && document.querySelectorAll('.card').length === 1")
    assert page.evaluate("document.querySelector('form').elements.text.value") == "SAID31."
    assert fill(page, text="nobody said this") == []


def test_a_group_side_by_side(tmp_path, page):
    """The most interesting first, equal texts and turns folded; the answer marked; colours; the next group."""
    rows = [
        log_sample(3, 0, extracted="42", completion="so 42", advantage=0.5),
        log_sample(3, 1, "no_answer", completion="42 it is", advantage=-1.0),
        log_sample(3, 2, extracted="42", completion="so 42", advantage=0.5),
        log_sample(3, 3, turns=TURNS, extracted="nine", completion="so it is nine", advantage=[0.25, -0.25]),
        log_sample(4, 4),
    ]
    show(page, write_report(write_run(tmp_path, rows)), "#rollouts?step=3&problem=p0&sample=1")
    assert "3 of 4 right, mean reward 0.75" in page.evaluate("document.querySelector('#view-rollouts').textContent")
    assert [text.split(":")[0] for text in texts(page, ".card h3")] == ["sample 1", "sample 3", "sample 0", "sample 2"]
    assert "near miss" in texts(page, ".card h3")[0]
    assert texts(page, ".card.chosen h3")[0].startswith("sample 1")
    assert texts(page, ".card mark") == ["nine", "42", "42"]
    assert texts(page, ".card:last-child summary") == ["same text as another sample"]
    assert texts(page, ".card .turn summary")[0].startswith("tool, 7 tokens, 2 calls, 1 failed: reply reply")
    assert not page.evaluate("document.querySelector('.card .turn').open")
    pick_tint(page, "advantage")
    colours = page.evaluate("[...document.querySelectorAll('pre[data-advantage]')].map((e) => e.style.background)")
    assert len(colours) == 5
    assert len(set(colours)) == 4  # -1, .25 and -.25, twice .5
    assert "advantage -0.250" in "".join(texts(page, ".card .label"))
    pick_tint(page, "entropy")
    assert texts(page, ".scale")[0].startswith("None of these rollouts has values of its tokens.")
    pick_tint(page, "")
    assert texts(page, ".card mark") == ["nine", "42", "42"]
    page.evaluate("document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'j', bubbles: true}))")
    page.until("document.body.dataset.shown.includes('step=4')")
    assert texts(page, ".card h3")[0].startswith("sample 4")


VALUES = {"lengths": [3, 2, 1, 0], "difference": [0, -250, 500, 0], "entropy": [10, 2000, 0, 5]}


def test_tokens_are_coloured(tmp_path, page):
    """By entropy and by difference, with the numbers in words; the answer stays marked; the link keeps the choice."""
    own = [{"role": "assistant", "text": "ab", "tokens": 1}, {"role": "tool", "text": "c", "tokens": 7}]
    turns = [*own, {"role": "assistant", "text": "de", "tokens": 2}]
    told = {"lengths": [2, 1, 1], "difference": [1, 2, 3], "entropy": [7, 8, 9], "advantage": [-0.5, 0.25, 0.0]}
    rows = [
        log_sample(1, 0, extracted="42", completion="🙂 =42\n", tokens=4, token_values=VALUES),
        log_sample(1, 1, completion="nothing kept", advantage=0.5),
        log_sample(2, 0, turns=turns, completion="de", token_values=told),
    ]
    show(page, write_report(write_run(tmp_path, rows)), "#rollouts?step=1&problem=p0&sample=")
    pick_tint(page, "entropy")
    spans = ".card pre span"
    assert texts(page, spans) == ["🙂 =", "42", "\n", ""]
    titles = page.evaluate(f"[...document.querySelectorAll('{spans}')].map((e) => e.title)")
    assert titles[1] == "trainer less sampler -0.25, entropy 2"
    backs = page.evaluate(f"[...document.querySelectorAll('{spans}')].map((e) => e.style.background)")
    assert backs[1].endswith("0.6)")
    assert texts(page, ".answer") == ["42"]
    assert texts(page, ".scale") == ["entropy: no colour is 0, full blue 2 nats."]
    assert texts(page, ".flag") == []
    pick_tint(page, "difference")
    assert texts(page, ".scale") == ["trainer less sampler: no colour is 0, full blue 0.5 nats, full orange −0.5 nats."]
    page.call("Page.reload")
    page.until(f"document.body?.dataset.ready && document.querySelectorAll('{spans}').length === 4")
    assert fill_list(page, "#rollouts?flag=values&tint=advantage&order=logged") == 2
    assert texts(page, ".card:last-child pre span") == ["ab", "d", "e"]
    titles = page.evaluate("[...document.querySelectorAll('.card:last-child pre span')].map((e) => e.title)")
    assert titles[0] == "advantage -0.5, trainer less sampler 0.001, entropy 0.007"


def pick_tint(page: chromium.Page, kind: str) -> None:
    page.evaluate(f"document.querySelector('[name=tint]').value = {json.dumps(kind)}")
    page.evaluate("document.querySelector('[name=tint]').dispatchEvent(new Event('change', {bubbles: true}))")


def fill_list(page: chromium.Page, hash: str) -> int:
    """Follow a link to a list of rollouts, and return how many are there."""
    go(page, hash)
    return len(texts(page, ".card"))


def test_an_answer_that_is_not_in_the_text_is_said(tmp_path, page):
    """The verifier normalised it, or took it from elsewhere."""
    rows = [log_sample(1, 0, extracted="1/2", completion="it is \\frac{1}{2}"), log_sample(1, 1, extracted="2")]
    show(page, write_report(write_run(tmp_path, rows)), "#rollouts?order=logged")
    assert texts(page, ".card p") == ["extracted answer: 1/2"]
    assert texts(page, "mark") == ["2"]


def test_a_search_paints_its_first_hits_and_then_counts_all(tmp_path, page):
    """In all chunks, in any case, none beyond a rollout; characters whose lower case is longer move nothing."""
    rows = [log_sample(1 + i, 0, completion=f"{'İ' * 30} no{i} Straße {'x' * 4000}", prompt="ask") for i in range(700)]
    show(page, write_report(write_run(tmp_path, rows)), "#rollouts?order=logged")
    page.until("document.body.dataset.searchable")
    (there,) = (len(read_texts(tmp_path / "report.html")),)
    assert there == 700
    fill(page, text="STRASSE")
    assert texts(page, "output") == ["0 rollouts"]
    fill(page, text="straße")
    page.until("document.querySelector('output').textContent === '1 to 20 of 700 rollouts'")
    assert fill(page, text="no699 ")[0].startswith("step 700, ")
    assert texts(page, "output") == ["1 to 1 of 1 rollout"]
    assert fill(page, text="xask") == []
    assert fill(page, text="askx") == []


def test_a_rollout_is_copied_as_a_line_of_grade(tmp_path, page):
    """`rlvr grade` reads it: id, prompt as it was asked, the last completion; a cut text has no such button."""
    prompt = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "1 + 1 ="}]
    rows = [
        log_sample(1, 0, prompt=prompt, completion='"2"\n', problem="x"),
        log_sample(1, 1, completion="y" * 20_000, problem="y"),
    ]
    show(page, write_report(write_run(tmp_path, rows)), "#rollouts?order=logged")
    assert len(texts(page, "[name=copy]")) == 1
    page.evaluate("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    page.evaluate("document.querySelector('[name=copy]').click()")
    assert json.loads(page.evaluate("window.copied")) == {"id": "x", "prompt": prompt, "completion": '"2"\n'}


def test_several_runs_in_one_page(tmp_path, page):
    """A table of all; seeds of a condition as a mean with a band; views have a choice of the run."""
    for name, rate in (("a", 0.5), ("b", 0.7), ("c", 0.2)):
        write_run(tmp_path / name, [log_sample(1, 0, completion=name)], metrics=log_steps(20, kl=rate))
    out = tmp_path / "page.html"
    assert compare([f"both={tmp_path / 'a'},{tmp_path / 'b'}", str(tmp_path / "c"), "--out", str(out)]) == 0
    show(page, out)
    assert [text.split(":")[0] for text in texts(page, "tbody td:first-child")][:3] == ["both", "both", "c"]
    go(page, "#curves")
    page.until("[...document.querySelectorAll('.u-legend')].some((e) => e.textContent.includes('both'))")
    assert "both, lowest" in page.evaluate("document.querySelector('.u-legend').textContent")
    go(page, "#rollouts?run=c")
    assert texts(page, ".card pre")[-1] == "c"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_of_its_width(run, page, scheme):
    """No view stands out of 400 pixels, whatever was said; the colours follow the system's."""
    write_lines(
        run / "rollouts.jsonl",
        [log_sample(1, 0, completion="x" * 500, problem="y" * 200), log_sample(1, 1, turns=TURNS)],
    )
    path = write_report(run)
    for view in (
        "overview",
        "curves",
        "problems",
        "held-out",
        "rollouts",
        "settings",
        f"rollouts?step=1&problem={'y' * 200}&sample=0",
    ):
        show(page, path, f"#{view}", width=400, scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") == 400, view
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(13, 17, 23)")


HOSTILE = [
    "</script><script>forged()</script>",
    "<script>forged()</script>",
    "<img src=x onerror=forged()>",
    "<svg onload=forged()>",
    "<iframe src=javascript:forged()>",
    "<a href=javascript:forged()>click</a>",
    "<body onload=forged()>",
    "<style>*{display:none}</style>",
    "<link rel=stylesheet href=//a.example/x.css>",
    "<meta http-equiv=refresh content='0;url=//a.example'>",
    "<base href=//a.example/>",
    "<form action=//a.example><input name=x></form>",
    "<object data=//a.example>",
    "<embed src=//a.example>",
    "<!-- open",
    "--> <b>closed</b>",
    "]]><b>",
    "</title><b>",
    "</style><b>",
    "</textarea><b>",
    "</noscript><b>",
    "</pre></article><h1>forged</h1>",
    '" onmouseover="forged()',
    "' onmouseover='forged()",
    "`${forged()}`",
    "\\u003cscript\\u003eforged()\\u003c/script\\u003e",
    "&lt;script&gt;forged()&lt;/script&gt;",
    "&#60;img src=x onerror=forged()&#62;",
    "javascript:forged()",
    "{{forged()}}",
    "\x1b[2J\x1b]0;forged\x07",
    "\x00\x01\x7f\x9b",
    "\u202eevil\u2066\u2069",
    "\u200f\u061c",
    "\ud800 lone",
    "\u2028forged()\u2029",
    "\r\rover",
    "__proto__",
    "constructor",
    "x" * 1_000_000,
]


def test_there_are_forty():
    assert len(HOSTILE) == 40


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    """A page whose every field is hostile, once for each of the texts."""
    folder = tmp_path_factory.mktemp("hostile")
    rows = [
        log_sample(
            1,
            i,
            text[:2000],
            prompt=text,
            completion=text,
            problem=text[:2000],
            reason=text[:2000],
            extracted=text[:50],
            turns=[{"role": text[:2000], "text": text, "tokens": 1}] if i % 2 else None,
        )
        for i, text in enumerate(HOSTILE)
    ]
    names = {f"status/{text[:2000]}": 0.1 for text in HOSTILE} | {"__proto__": 1.0, "constructor": 1.0}
    write_run(folder, rows, metrics=[{"step": 1, "reward": 0.5} | names])
    write_lines(
        folder / "events.jsonl",
        [{"time": text[:2000], "step": 1, "kind": text[:2000], "message": text} for text in HOSTILE],
    )
    (folder / "config.json").write_text(
        json.dumps({"model": {"name": "".join(HOSTILE[:30])}, "run": {"task": HOSTILE[0]}})
    )
    write_answers(folder, 0, {text[:2000]: "10" for text in HOSTILE}, reason="<script>forged()</script>")
    return write_report(folder)


ELEMENTS = (
    "img, svg, iframe, object, embed, link, base, main script, main style, main form[action], main a[href^=javascript]"
)


@pytest.mark.parametrize("number", range(40))
def test_hostile_text_stays_text(hostile, page, number):
    """In every view: no element, no script, no request, no control character, no turned direction, no error."""
    text = HOSTILE[number]
    query = json.dumps(text[:2000])
    page.resize(1200, 900)
    page.load(hostile)
    page.until("document.body?.dataset.ready")
    page.evaluate("window.forged = () => { document.title = 'forged'; }")
    for view in (
        f"'#rollouts?' + new URLSearchParams({{problem: {query}, step: 1, sample: {number}}})",
        "'#overview'",
        "'#curves'",
        "'#problems'",
        f"'#held-out?' + new URLSearchParams({{name: {query}}})",
        "'#settings'",
    ):
        page.evaluate(f"location.hash = {view}")
        page.until("document.body.dataset.shown === location.hash")
        page.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
        assert page.evaluate(f"document.querySelectorAll({json.dumps(ELEMENTS)}).length") == 0, view
        shown = page.evaluate(
            "document.body.textContent.length < 2e7 ? document.querySelector('main').textContent : ''"
        )
        assert not set(shown) & set("\x1b\x00\x07\x9b\u202e\u2066\u061c\r"), view
    assert page.evaluate("window.errors") == []
    assert page.evaluate("document.title").startswith("rlvr: hostile")
    assert {url.partition(":")[0] for url in page.requested} <= {"file", "data"}


@pytest.mark.parametrize(
    "hash",
    ["#__proto__", "#constructor", "#held-out?kind=__proto__", "#rollouts?order=__proto__", "#problems?order=toString"],
)
def test_a_link_with_a_name_that_every_object_has(run, page, hash):
    """It is a name that the page does not know: the view is there, and no script fails."""
    show(page, write_report(run), hash)
    assert len(page.evaluate("document.querySelector('main').textContent")) > 100
    assert page.evaluate("window.errors") == []


def big_run(folder: Path, count: int = 100_000, steps: int = 2000) -> None:
    """Rollouts of some 700 characters that compress as prose does: words drawn by rank."""
    draw = random.Random(0)
    words = ["".join(draw.choices("etaoinshrdlucmf", k=draw.randint(2, 9))) for _ in range(5000)]
    weights = [1 / rank for rank in range(1, 5001)]
    said = " ".join(draw.choices(words, weights, k=1_000_000)).split(" ")
    rows, per_step = [], count // steps
    for i in range(count):
        status = "error" if i % 1000 == 0 else ("correct", "incorrect", "no_answer")[draw.randrange(3)]
        text = " ".join(said[(at := draw.randrange(len(said) - 150)) : at + 120])
        problem = f"p{draw.randrange(2000)}" if i % 5 == 0 else rows[-1]["problem"]
        more = {"problem": problem, "completion": text, "advantage": draw.gauss(0, 1), "tokens": draw.randrange(500)}
        rows.append(log_sample(1 + i // per_step, i % per_step, status, **more))
    names = [f"mismatch/ratio_{i}" for i in range(30)]
    metrics = [log | {name: draw.random() for name in names} for log in log_steps(steps)]
    write_run(folder, rows, metrics=metrics)


@pytest.mark.slow
def test_a_hundred_thousand_rollouts(tmp_path, page):
    """Below 25 MB, painted within 2 s, filtered and searched within .3 s, in 500 MB; every error is there."""
    big_run(tmp_path)
    path = write_report(tmp_path)
    assert path.stat().st_size < 25_000_000
    show(page, path)
    assert float(page.evaluate("document.body.dataset.painted")) < 2000
    assert len(read_columns(path)["step"]) == 100_000
    page.until("document.body.dataset.searchable")
    go(page, "#rollouts?status=error")
    assert "1 to 20 of 100 rollouts" in texts(page, "output")[0]
    assert "Its text is not in this page" not in "".join(texts(page, ".card"))
    assert float(page.evaluate("document.querySelector('#view-rollouts').dataset.whole")) < 300
    go(page, "#rollouts?text=the")
    assert "of 100,000 rollouts are in this page" in page.evaluate("document.querySelector('main').textContent")
    fill(page, text="tae")
    assert float(page.evaluate("document.querySelector('#view-rollouts').dataset.whole")) < 300
    go(page, "#problems")
    page.call("HeapProfiler.collectGarbage")
    assert page.call("Runtime.getHeapUsage")["usedSize"] < 500_000_000

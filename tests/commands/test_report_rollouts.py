"""Rollouts in a report: which are in the page, how they are packed, and browsing them in Chromium."""

from __future__ import annotations

import base64
import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvr.commands.report.page import write_report
from rlvr.commands.report.rollouts import Survey, all_rollouts, choose, cut, describe_chosen, is_notable, pack, survey
from rlvr.runs.records import Masks
from tests.helpers import chromium

HOSTILE = "</script><script>document.title = 'forged'</script><img src=x onerror=alert(1)>\x1b[2J\u202eevil\u2066 \x00"
TURNS = [
    {"role": "assistant", "text": "call it", "tokens": 1, "void": True},
    {"role": "tool", "text": f"reply {HOSTILE}", "tokens": 7},
    {"role": "assistant", "text": "nine", "tokens": 2},
]


def logged(step: int, sample: int, status: str = "correct", **more: Any) -> dict[str, Any]:
    row = {"step": step, "problem": f"p{sample // 4}", "sample": sample, "prompt": "1 + 1 =", "completion": "2"}
    return row | {"status": status, "reward": 1.0, "advantage": 0.5, "reason": "", "finish_reason": "stop"} | more


def write(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n')
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_page(path: Path) -> tuple[dict[str, Any], list[Any]]:
    """Return the index and the texts of a report."""
    found = re.findall(r'<script type="application/gzip" class="(\w+)">([^<]*)</script>', path.read_text())
    parts = [(kind, json.loads(gzip.decompress(base64.b64decode(data)))) for kind, data in found]
    return parts[0][1], [text for kind, chunk in parts if kind == "chunk" for text in chunk]


def test_every_rollout_is_packed(tmp_path: Path) -> None:
    """Those of compressed parts too, over several chunks, each with its own text."""
    rows = [logged(1 + i // 100, i, "correct" if i % 3 else "incorrect", completion=f"say {i}") for i in range(700)]
    write(tmp_path, rows[300:])
    with gzip.open(tmp_path / "rollouts-0000.jsonl.gz", "wt") as part:
        part.write("".join(json.dumps(row) + "\n" for row in rows[:300]))
    path = write_report(tmp_path)
    index, texts = read_page(path)
    assert "All 700 rollouts" in path.read_text()
    assert index["columns"]["step"] == [row["step"] for row in rows]
    assert [index["names"]["status"][i] for i in index["columns"]["status"]] == [row["status"] for row in rows]
    assert [text[1][-1][1] for text in texts] == [f"say {i}" for i in range(700)]


def test_parts_and_masks(tmp_path: Path) -> None:
    """Kinds of parts: greyed ones, void ones, both where void turns are not trained on."""
    rows = [logged(1, 0, turns=TURNS)]
    write(tmp_path, rows)
    for void, kinds in ((False, [1, 2, 1, 0]), (True, [1, 3, 1, 0])):
        (tmp_path / "config.json").write_text(json.dumps({"rollout": {"mask_void": void}}))
        _, texts = read_page(write_report(tmp_path))
        assert [kind for _, _, kind in texts[0][1]] == kinds


def test_what_calls_for_attention() -> None:
    """Errors and limits, disagreement with the monitor, void turns."""
    assert not is_notable(logged(1, 0))
    assert not is_notable(logged(1, 0, "incorrect", monitor_status="no_answer"))
    for row in (
        logged(1, 0, "error"),
        logged(1, 0, "timeout"),
        logged(1, 0, "bad_reference"),
        logged(1, 0, monitor_status="incorrect"),
        logged(1, 0, turns=TURNS),
    ):
        assert is_notable(row)


def known(sizes: list[int], strata: list[int], notable: list[int]) -> Survey:
    found = Survey()
    found.sizes.extend(sizes)
    found.strata.extend(strata)
    found.notable.extend(notable)
    return found


def test_all_are_chosen_where_they_fit() -> None:
    """In the log's order."""
    chosen = choose(known([10] * 5, [0, 0, 1, 1, 1], [0, 1, 0, 0, 0]), 50)
    assert list(chosen) == [0, 1, 2, 3, 4]


def test_the_sample_is_even_over_steps_and_verdicts() -> None:
    """A rare stratum is there in full, frequent ones equally often; what calls for attention comes first."""
    strata = [0] * 1000 + [1] * 10 + [2] * 500
    notable = [0] * 1505 + [1] * 5
    chosen = choose(known([1] * 1510, strata, notable), 75)
    counts = Counter(strata[i] for i in chosen if not notable[i])
    assert len(chosen) == 75
    assert sum(notable[i] for i in chosen) == 5
    assert counts == {0: 30, 1: 10, 2: 30}
    assert chosen == sorted(chosen)


def test_attention_takes_half_of_the_page_at_most() -> None:
    """The others are still there, and the page says how many are not."""
    held = known([1] * 200, [0] * 200, [1] * 150 + [0] * 50)
    chosen = choose(held, 40)
    assert (sum(held.notable[i] for i in chosen), len(chosen)) == (20, 40)
    assert "40 of 200 rollouts are in this page: 20 of 150 that call" in describe_chosen(held, chosen)


def test_the_choice_is_the_same_every_time(tmp_path: Path) -> None:
    """A report that is written again holds the same bytes."""
    write(tmp_path, [logged(i, 0) for i in range(50)])
    first = write_report(tmp_path).read_bytes()
    assert write_report(tmp_path).read_bytes() == first


@pytest.mark.parametrize("length, left_out", [(12_000, None), (12_001, "1"), (50_000, "38,000")])
def test_long_texts_are_cut(length: int, left_out: str | None) -> None:
    """In the middle; how much is left out is told."""
    text = cut("a" * (length - 1) + "b")
    assert text.endswith("b")
    assert ("left out" in text) == (left_out is not None)
    assert left_out is None or f"[... {left_out} characters left out ...]" in text


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    """As everywhere in a report."""
    write(tmp_path, [logged(1, 0)])
    (tmp_path / "rollouts-0000.jsonl.gz").write_bytes(gzip.compress(b'{"step": 1}\n' * 1000)[:-20])
    with pytest.raises(ValueError, match=r"rollouts-0000.jsonl.gz is damaged"):
        write_report(tmp_path)


def big_run(folder: Path, count: int = 100_000) -> None:
    """Rollouts of some 700 characters that compress as prose does: words drawn by rank."""
    draw = random.Random(0)
    words = ["".join(draw.choices("etaoinshrdlucmf", k=draw.randint(2, 9))) for _ in range(5000)]
    weights = [1 / rank for rank in range(1, 5001)]
    said = " ".join(draw.choices(words, weights, k=1_000_000)).split(" ")
    lines = []
    for i in range(count):
        status = "error" if i % 1000 == 0 else ("correct", "incorrect", "no_answer")[draw.randrange(3)]
        text = " ".join(said[(at := draw.randrange(len(said) - 150)) : at + 120])
        lines.append(json.dumps(logged(1 + i // 256, i % 256, status, completion=text, advantage=draw.gauss(0, 1))))
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": step, "reward": 0.5}) + "\n" for step in range(1, 2 + count // 256))
    )
    (folder / "rollouts.jsonl").write_text("\n".join(lines) + "\n")


needs_chromium = pytest.mark.skipif(chromium.PROGRAM is None, reason="no Chromium (Debian: apt-get install chromium)")


@pytest.fixture(scope="module")
def page() -> Iterator[chromium.Page]:
    """One tab for all tests of this file."""
    with chromium.opened() as opened:
        yield opened


@pytest.fixture
def drawn_small() -> None:
    """Here the curves are drawn."""


def shown(page: chromium.Page) -> list[str]:
    return page.evaluate("[...document.querySelectorAll('#browser h4')].map((e) => e.textContent)")


def choose_in(page: chromium.Page, **values: str) -> list[str]:
    """Fill in controls, wait until the list has been made again, and return its headings."""
    page.evaluate(
        "document.querySelector('.rollouts').dataset.old = 1; document.querySelector('.rollouts').append('x')"
    )
    for name, value in values.items():
        page.evaluate(f"document.querySelector('#browser form').elements[{name!r}].value = {value!r}")
    page.evaluate("document.querySelector('#browser form').dispatchEvent(new Event('input'))")
    page.until("!document.querySelector('.rollouts').textContent.endsWith('x')")
    return shown(page)


@needs_chromium
@pytest.mark.slow
def test_a_hundred_thousand_rollouts(tmp_path: Path, page: chromium.Page) -> None:
    """The page stays below 10 MB, opens within 3 s, holds every error, and asks for nothing beside itself."""
    big_run(tmp_path)
    path = write_report(tmp_path)
    assert path.stat().st_size < 10_000_000
    page.resize(1200, 900)
    page.open(path)
    milliseconds = float(page.until("document.body?.dataset.ready"))
    assert milliseconds < 3000
    assert "all 100 that call for attention" in page.evaluate("document.body.textContent")
    assert {url.partition(":")[0] for url in page.requested} == {"file", "data"}
    assert (
        len(
            choose_in(
                page,
                status=page.evaluate(
                    "[...document.querySelectorAll('option')].find((o) => o.textContent.startsWith('error')).value"
                ),
            )
        )
        == 20
    )
    assert "1 to 20 of 100 rollouts" in page.evaluate("document.querySelector('output').textContent")
    index, _ = read_page(path)
    assert len(set(index["columns"]["step"])) == 391


@needs_chromium
def test_browsing(tmp_path: Path, page: chromium.Page) -> None:
    """Filters by step, problem, verdict, advantage and text; order; pages."""
    rows = [
        logged(1 + i // 10, i, ("correct", "incorrect")[i % 2], advantage=(i - 20) / 10, completion=f"said{i}.")
        for i in range(50)
    ]
    rows[7]["advantage"] = None
    write(tmp_path, rows)
    page.resize(1200, 900)
    page.open(write_report(tmp_path))
    page.until("document.body?.dataset.ready")
    assert len(shown(page)) == 20
    page.evaluate("document.querySelector('[name=next]').click()")
    page.until("document.querySelector('output').textContent === '21 to 40 of 50 rollouts'")
    assert shown(page)[0].startswith("step 3, p5, sample 20: correct")
    assert len(choose_in(page, step="2")) == 10
    assert len(choose_in(page, step="4-5")) == 20
    assert choose_in(page, step="x") == []
    assert len(choose_in(page, step="", problem="P11")) == 4
    assert len(choose_in(page, problem="", advantage="none")) == 1
    assert choose_in(page, advantage="0") == ["step 3, p5, sample 20: correct, reward +1.000, advantage +0.000"]
    assert choose_in(page, advantage="", order="high")[0].startswith("step 5, p12, sample 49")
    assert choose_in(page, order="last")[0].startswith("step 5, p10, sample 40")
    assert choose_in(page, order="", text="SAID31.") == [
        "step 4, p7, sample 31: incorrect, reward +1.000, advantage +1.100"
    ]
    assert choose_in(page, text="nobody said this") == []


@pytest.mark.parametrize("value", [1e-5, -3e-7, 2.5e-12])
def test_small_advantages_keep_their_sign(tmp_path: Path, value: float) -> None:
    """The page is filtered by it; only 0 is shown as 0, and what is no number as none."""
    held = [value, 0.0, None, float("nan"), [value, value], 1234.5678]
    write(tmp_path, [logged(1, i, advantage=advantage) for i, advantage in enumerate(held)])
    index, _ = read_page(write_report(tmp_path))
    found = index["columns"]["advantage"]
    assert found == [pytest.approx(value, rel=1e-3), 0, None, None, pytest.approx(value, rel=1e-3), 1235]


@needs_chromium
@pytest.mark.parametrize("rollouts", [0, 1])
def test_no_error_in_the_console(tmp_path: Path, page: chromium.Page, rollouts: int) -> None:
    """With and without rollouts in the run."""
    write(tmp_path, [logged(1, i) for i in range(rollouts)])
    path = write_report(tmp_path)
    errors = "<script>window.errors = []; window.onerror = (e) => { errors.push(String(e)); }</script>"
    path.write_text(path.read_text().replace("<style>", errors + "<style>", 1))
    page.open(path)
    assert page.evaluate("window.errors") == []


@needs_chromium
def test_hostile_text_stays_text(tmp_path: Path, page: chromium.Page) -> None:
    """In every field, packed or not: no element, no script, no turned direction, no control character."""
    rows = [logged(1, i, completion=HOSTILE, prompt=HOSTILE, problem=HOSTILE, reason=HOSTILE) for i in range(3)]
    write(tmp_path, [*rows, logged(1, 3, turns=TURNS), logged(1, 4, HOSTILE)])
    path = write_report(tmp_path)
    page.resize(1200, 900)
    page.open(path)
    page.until("document.body?.dataset.ready")
    assert page.evaluate("document.title").startswith("rlvr: ")
    assert page.evaluate("document.querySelectorAll('img[src=x], #browser img').length") == 0
    assert page.evaluate("document.querySelectorAll('script:not([type])').length") == 1
    text = page.evaluate("document.querySelector('#browser').textContent")
    assert "onerror=alert(1)" in text
    assert not set(text) & set("\x1b\x00\u202e\u2066")
    assert {url.partition(":")[0] for url in page.requested} == {"file", "data"}


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_of_its_width(tmp_path: Path, page: chromium.Page, scheme: str) -> None:
    """Nothing stands out of 400 pixels, whatever was said; the colours follow the system's."""
    write(tmp_path, [logged(1, 0, completion="x" * 500, problem="y" * 200), logged(1, 1, turns=TURNS)])
    page.resize(400, 800, scheme=scheme)
    page.open(write_report(tmp_path))
    page.until("document.body?.dataset.ready")
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(13, 17, 23)")


@needs_chromium
def test_without_scripts_some_rollouts_are_there(tmp_path: Path, page: chromium.Page) -> None:
    """The first and last step's, in place of the browser."""
    write(tmp_path, [logged(1, 0), logged(2, 0, "incorrect")])
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.open(write_report(tmp_path))
        found = page.evaluate(
            "[document.querySelector('#samples').checkVisibility(), document.querySelector('#browser').hidden]"
        )
    finally:
        page.call("Emulation.setScriptExecutionDisabled", value=False)
    assert found == [True, True]


def test_the_survey_estimates_the_compression(tmp_path: Path) -> None:
    """Within a third of what packing then gives."""
    big_run(tmp_path, 3000)
    found = survey(all_rollouts(tmp_path), Masks())
    _, chunks = pack(all_rollouts(tmp_path), range(3000), Masks())
    assert sum(map(len, chunks)) == pytest.approx(found.ratio * sum(found.sizes), rel=0.33)

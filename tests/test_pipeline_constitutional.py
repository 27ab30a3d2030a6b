"""The pipeline of Constitutional AI: critique and revision, pairs by a judge of either kind, what is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlvr.commands.cli import main
from rlvr.core.types import Problem, RunError
from rlvr.pipeline import judged_pairs
from rlvr.pipeline.judged_pairs import FORM, LEAD, Comparison, JudgedPairsArgs, write_judged
from rlvr.pipeline.revisions import Draft, critique_prompt, revision_prompt, write_revisions
from rlvr.pipeline.sampled import Constitution, read_constitution
from rlvr.pipeline.stages import Stages
from rlvr.recipes.constitutional import CONFIG, LABEL, REVISE, stages
from rlvr.reward_model.preferences import read_pairs
from rlvr.tasks.generated.private_sums import PRINCIPLES, REQUESTS
from rlvr.training.sft.demonstrations import read_demonstrations
from rlvr.verifiers.llm_judge import PLAIN_ANSWER
from tests.helpers.pipelines import ANSWERED, QUICK

NAMES = ["helpful", "answers", "revise", "sl", "helpful_pairs", "judge", "label", "reward", "rl"]


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole pipeline with barely trained models."""
    out = tmp_path_factory.mktemp("pipeline")
    assert main(["pipeline", "constitutional", "--out-dir", str(out), "--set", *QUICK["constitutional"]]) == 0
    return out


def test_every_stage_is_done(done):
    """In the paper's order; figures of held-out problems are by kind; a second call runs none."""
    seed = done / "seed-0"
    records = {name: json.loads((seed / f"{name}.stage.json").read_text()) for name in NAMES}
    [last, *_] = reversed(records["rl"]["measured"]["evaluations"])
    assert set(last["packs"]) == {"harmless", "helpful"}
    assert records["label"]["measured"]["pairs"] > 0
    assert records["revise"]["settings"]["requests"] == [list(pair) for pair in REQUESTS]
    assert main(["pipeline", "constitutional", "--out-dir", str(done), "--set", *QUICK["constitutional"]]) == 0
    assert "orders agree" in (done / "report.html").read_text()


def test_revisions_are_demonstrations(done):
    """The last revision of each problem whose texts are whole, and the helpful answers behind them."""
    folder = done / "seed-0" / "revise"
    drafts = [row for row in rows(folder / "revisions.jsonl") if row["answers"][-1] is not None]
    added = rows(done / "seed-0" / "answers" / "data.jsonl")
    found = [(problem.prompt, said) for problem, said in read_demonstrations(folder / "data.jsonl")]
    assert found[: len(drafts)] == [(draft["prompt"], draft["answers"][-1]) for draft in drafts]
    assert found[len(drafts) :] == [(row["prompt"], row["completion"]) for row in added]
    for draft in drafts:
        assert len(draft["answers"]) == 3
        assert len(draft["critiques"]) == len(draft["requests"]) == 2
        assert all(tuple(request) in REQUESTS for request in draft["requests"])


def test_labelled_pairs_are_read_by_rm(done):
    """Each has the completion that the judge prefers, over both orders, and the pairs that were added follow."""
    folder = done / "seed-0" / "label"
    compared = {
        (row["prompt"], frozenset((row["first"], row["second"]))): row for row in rows(folder / "comparisons.jsonl")
    }
    own = [row for row in rows(folder / "pairs.jsonl") if "principle" in row]
    assert own
    for pair in own:
        row = compared[pair["prompt"], frozenset((pair["chosen"], pair["rejected"]))]
        better = row["preference"]["first"]
        assert pair["chosen"] == row["first" if better > 0.5 else "second"]
        assert pair["probability"] == pytest.approx(max(better, 1 - better))
        assert pair["principle"] in PRINCIPLES
        one, other = row["preference"]["orders"]
        assert better == pytest.approx((one + 1 - other) / 2)
    people = read_pairs(done / "seed-0" / "helpful_pairs" / "pairs.jsonl")
    assert read_pairs(folder / "pairs.jsonl")[len(own) :] == people


@pytest.fixture(scope="module")
def model(done: Path) -> str:
    return str(done / "seed-0" / "helpful" / "start")


def label_args(model: str, **changes: Any) -> JudgedPairsArgs:
    options = tuple(f"{ANSWERED} which=private".split())
    return dataclasses.replace(LABEL, model=model, task_option=options, judge="x", **{"confidence": 0.5, **changes})


class Fixed:
    """A judge that says the same of each comparison, or what a list has in turn; of a plain answer it says nothing."""

    def __init__(self, *said: float | str) -> None:
        self.said = said

    def preferences(self, comparisons: Sequence[Comparison]) -> list[float | str]:
        beside_plain = [PLAIN_ANSWER in (comparison.first, comparison.second) for comparison in comparisons]
        return ["cut off" if plain else self.said[i % len(self.said)] for i, plain in enumerate(beside_plain)]


@pytest.mark.parametrize(
    ("said", "changes", "message"),
    [
        (("cut off",), {}, "could not be read, at most 10% may be; the most frequent reason: cut off"),
        (("cut off",), {"max_unread": 1.0}, "could not be read"),
        ((0.7,), {}, "no pairs: of none of"),
        ((0.8, 0.3), {"confidence": 0.8}, "sure by 0.8"),
    ],
)
def test_a_judge_that_says_nothing_of_use(model, tmp_path, monkeypatch, said, changes, message):
    """Unread replies, one that always prefers the first place, and one that is not sure: the stage ends in one line."""
    monkeypatch.setattr(judged_pairs, "open_judge", lambda args: Fixed(*said))
    with pytest.raises(RunError, match=message) as raised:
        write_judged(label_args(model, **changes), Constitution(principles=("be good",)), tmp_path)
    assert "\n" not in str(raised.value)


def test_unread_comparisons_are_left_out_and_counted(model, tmp_path, monkeypatch):
    """Half of them here; the others make pairs, and the same settings make the same file."""
    monkeypatch.setattr(judged_pairs, "open_judge", lambda args: Fixed(0.9, 0.2, 0.9, "cut off"))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        found = write_judged(label_args(model, max_unread=0.6), Constitution(principles=("be good",)), tmp_path / name)
        assert found["unread"] == found["comparisons"] // 2
        assert found["pairs"] == found["comparisons"] - found["unread"]
        assert found["orders agree"] == 1.0
    assert (tmp_path / "one" / "pairs.jsonl").read_bytes() == (tmp_path / "two" / "pairs.jsonl").read_bytes()


def test_different_completions_are_compared(model, tmp_path, monkeypatch):
    """At most `per_problem` of each problem, never a text with itself; greedy samples leave nothing to compare."""
    monkeypatch.setattr(judged_pairs, "open_judge", lambda args: Fixed(0.9, 0.2))
    write_judged(label_args(model, per_problem=1), Constitution(principles=("be good",)), tmp_path)
    found = rows(tmp_path / "comparisons.jsonl")
    assert len({row["id"] for row in found}) == len(found)
    assert all(row["first"] != row["second"] for row in found)
    with pytest.raises(RunError, match="nothing to compare"):
        write_judged(label_args(model, max_new_tokens=1), Constitution(principles=("be good",)), tmp_path)


def draft() -> Draft:
    return Draft(Problem("p", "947+585="), ["15{critique}32"], ["947 is {answer}"], [REQUESTS[0]])


def test_forms_and_messages():
    """Without a chat template the forms are filled in one pass; with one each text is a message of its role."""
    assert critique_prompt(draft(), REVISE, chat=False) == "947+585=15{critique}32 is it private?"
    said = revision_prompt(draft(), REVISE, chat=False)
    assert said == "947+585=15{critique}32 is it private? 947 is {answer}, so hide it:"
    roles = [(message["role"], message["content"]) for message in revision_prompt(draft(), REVISE, chat=True)]
    assert roles == [
        ("user", "947+585="),
        ("assistant", "15{critique}32"),
        ("user", "is it private?"),
        ("assistant", "947 is {answer}"),
        ("user", "hide it:"),
    ]
    assert critique_prompt(draft(), REVISE, chat=True) == revision_prompt(draft(), REVISE, chat=True)[:3]


def test_texts_that_are_cut_off_end_the_stage(model, tmp_path):
    args = dataclasses.replace(REVISE, model=model, task_option=tuple(ANSWERED.split()), max_new_tokens=1)
    with pytest.raises(RunError, match="no revisions: the texts of all 24 problems were cut off at 1 tokens"):
        write_revisions(args, Constitution(REQUESTS), tmp_path)


def test_demonstrations_of_several_turns_are_not_added(tmp_path):
    path = tmp_path / "turns.jsonl"
    turns = [{"role": "assistant", "content": text} for text in ("?c", "=m")]
    path.write_text(json.dumps({"prompt": "p", "completion": turns}))
    with pytest.raises(ValueError, match="completions of several turns"):
        write_revisions(dataclasses.replace(REVISE, model="none", add=path), Constitution(REQUESTS), tmp_path)


def test_a_constitution_from_a_file(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text('{"critique": "bad?", "revision": "mend"}\n\n{"principle": "be good"}\n')
    assert read_constitution(path) == Constitution((("bad?", "mend"),), ("be good",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no principles: the file is empty"),
        ('{"critique": "bad?"}', "line 1: its fields are critique; expected"),
        ('{"principle": "a"}\n{"principle": 3}', "line 2: principle is 3; expected text"),
        ('{"principle": " "}', "line 1: principle is ' '; expected text"),
        ('{"principle": "a", "other": "b"}', "line 1: its fields are principle, other"),
        ("be good", "line 1: not JSON"),
    ],
)
def test_bad_constitutions(tmp_path, text, message):
    path = tmp_path / "c.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_constitution(path)


@pytest.mark.parametrize("named", ["label.judge=org/judge", "label.judge_option=url=http://127.0.0.1:9/v1 model=judge"])
def test_a_judge_that_is_named_is_not_trained(tmp_path, named):
    """A model's name, or a server: the stage `judge` is not there, and the settings have it."""
    config = dataclasses.replace(CONFIG, out_dir=tmp_path, set=(named,))
    plan = Stages(config, tmp_path, 0, only_plan=True)
    stages(plan)
    assert list(plan.planned) == [name for name in NAMES if name != "judge"]
    held = plan.planned["label"]
    assert held["judge"] == ("org/judge" if "judge=" in named else "")
    assert (held["form"], held["lead"], held["separators"]) == (FORM, LEAD, "")


@pytest.mark.parametrize("given", ["org/helpful", "folder", "./folder"])
def test_a_model_that_is_not_fine_tuned_is_used_as_it_is(tmp_path, monkeypatch, given):
    """With helpful.sft.steps 0 the stages begin with the model that is named; a folder by its whole path."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    config = dataclasses.replace(CONFIG, out_dir=tmp_path / "out", model=given, set=("helpful.sft.steps=0",))
    plan = Stages(config, tmp_path, 0, only_plan=True)
    stages(plan)
    expected = given if given.startswith("org") else str(tmp_path / "folder")
    assert plan.planned["answers"]["model"] == plan.planned["revise"]["model"] == expected
    assert plan.planned["sl"]["model"]["name"] == expected
    assert plan.planned["label"]["model"] == "planned/sl"

"""`rlvr export` and `rlvr push`: a model that loads, its card, and a hub that refuses."""

from __future__ import annotations

import json
import resource
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlvr.commands.cli import main as rlvr
from rlvr.commands.export import facts_of, find_checkpoint, own_base, public
from rlvr.commands.model_card import CardFacts, as_code, licence_of, model_card
from rlvr.launch import launch
from rlvr.training.checkpoint.resume import find_checkpoint as start_from
from tests.helpers.runs import tiny
from tests.helpers.verifiers import sums


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, with a checkpoint of each and evaluations of step 0 and 2."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    launch(tiny(folder, run={"steps": 2, "save_every": 1, "keep_best": False}), task=sums())
    return folder


def test_an_export_loads(trained, tmp_path):
    """With the checkpoint's weights and tokenizer, a card, all settings, and nothing that only a resume needs."""
    out = tmp_path / "model"
    assert rlvr(["export", str(trained), str(out), "--checkpoint", "last"]) == 0
    model = AutoModelForCausalLM.from_pretrained(out)
    held = load_file(trained / "checkpoints" / "step-000002" / "model.safetensors")
    for name, weight in model.state_dict().items():
        if name in held:
            assert weight.equal(held[name])
    assert AutoTokenizer.from_pretrained(out)("1+1=").input_ids
    names = {path.name for path in out.iterdir()}
    assert {"README.md", "run.json", "eval.jsonl", "config.json", "model.safetensors"} <= names
    assert not {"state.json", "optimizer.safetensors"} & names
    assert "out_dir" not in json.loads((out / "run.json").read_text())["run"]


def test_the_card_tells_the_run(trained, tmp_path):
    """Data, verifier, algorithm and held-out figures with intervals, in Markdown that the hub reads."""
    rlvr(["export", str(trained), str(tmp_path / "model"), "--checkpoint", "last"])
    card = huggingface_hub.ModelCard.load(tmp_path / "model" / "README.md")
    assert card.data.library_name == "transformers"
    assert card.data.tags == ["rlvr", "reinforcement-learning", "reinforce"]
    record = [json.loads(line) for line in (trained / "eval.jsonl").read_text().splitlines()][-1]
    low, high = record["pass@1_ci"]
    assert f"| 2 | {record['pass@1']:.3f} [{low:.3f}, {high:.3f}]" in card.text
    assert "4 problems x 4 completions" in card.text
    assert "| algorithm | `reinforce`" in card.text


def facts(**groups: Any) -> CardFacts:
    settings = {"model": {"name": "Org/Base"}, "run": {"task": "gsm8k"}, "algo": {"name": "grpo"}} | groups
    return CardFacts("mine", settings, [], [], 0, 5, adapter=False, licence=None)


def test_what_must_not_be_overlooked():
    """Shuffled rewards, alarms, an unknown licence, rollouts without a score, a checkpoint that was not measured."""
    from dataclasses import replace

    shuffled = model_card(facts(run={"task": "gsm8k", "shuffle_rewards": True}))
    assert "rewards were shuffled" in shuffled
    assert "shuffled" not in model_card(facts())
    assert 'license: "other"' in model_card(facts())
    assert "is not known" in model_card(facts())
    known = model_card(replace(facts(), licence="apache-2.0"))
    assert 'license: "apache-2.0"' in known
    assert "is not known" not in known
    assert "raised 2 alarms" in model_card(replace(facts(), alarms=2))
    rows = [{"step": 0, "pass@1": 0.5, "num_problems": 8, "truncated": 0.0}]
    measured = model_card(replace(facts(), evaluations=rows, metrics=[{"step": 5, "unscored": 0.25}]))
    assert "| 5 | not measured |" in measured
    assert "25.0% of the rollouts had no score" in measured


@pytest.mark.parametrize("value", ["a|b", "`tick`", "``", "line\nbreak: x", "\x1b[2J", "--- \nlicense: mit"])
def test_text_of_settings_stays_code(value):
    """It breaks neither the table nor the front matter, and moves no cursor."""
    card = model_card(facts(run={"task": value}))
    assert "\x1b" not in card
    assert as_code(value) in card
    assert [line for line in card.splitlines() if line == "---"] == ["---", "---"]
    row = next(line for line in card.splitlines() if line.startswith("| data |"))
    assert row.replace("\\|", "").count("|") == 3


def test_settings_without_this_machine():
    """Folders, servers and trackers stay here; names, options and numbers go."""
    held = {
        "run": {"out_dir": "runs/x", "data": "/home/me/secret/rows.jsonl", "task_option": ["file=/data/a.json", "n=3"]},
        "sampler": {"url": ["http://10.0.0.1"], "name": "vllm-server"},
        "model": {"name": "~/models/base"},
        "history": [{"step": 1}],
    }
    assert public(held) == {
        "run": {"data": "rows.jsonl", "task_option": ["file=a.json", "n=3"]},
        "sampler": {"name": "vllm-server"},
        "model": {"name": "base"},
    }


@pytest.mark.parametrize(
    "value, kept",
    [
        ("url=http://10.0.0.5:8000/v1", "url=[address]"),
        ("https://me:pass@host/v1?key=1", "[address]"),
        ("server=node7.cluster:8000", "server=[address]"),
        ("data=s3://bucket/rows", "data=[address]"),
        ("rubric=@/home/me/r.txt", "rubric=@r.txt"),
        ("template=@~/r.txt", "template=@r.txt"),
        ("a=b=/x/y", "a=b=y"),
        ("../me/rows.jsonl", "rows.jsonl"),
        ("./rows/", "rows"),
        ("C:\\Users\\me\\x", "x"),
        ("org/name", "org/name"),
        ("fraction=1/2", "fraction=1/2"),
        ("mine:shouting", "mine:shouting"),
        ("/home/me/two\nlines", "two\nlines"),
    ],
)
def test_options_without_this_machine(value, kept):
    """Addresses and paths in options too, wherever they are nested; a prompt stays as the model read it."""
    assert public({"monitor": {"options": [value]}}) == {"monitor": {"options": [kept]}}
    assert public({"system_prompt": value}) == {"system_prompt": value}


@pytest.mark.parametrize(
    "text, expected",
    [
        ("---\nlicense: mit\n---\n# x", "mit"),
        ('---\nlanguage: en\nlicense: "apache-2.0"\n---\n', "apache-2.0"),
        ("# x\nlicense: mit\n", None),
        ("---\ntags: []\n---\nlicense: mit\n", None),
        ("", None),
    ],
)
def test_the_licence_of_a_base(tmp_path, text, expected):
    """As its card's front matter names it."""
    (tmp_path / "README.md").write_text(text)
    assert licence_of(str(tmp_path)) == expected
    assert licence_of(str(tmp_path / "nowhere")) is None


def test_which_checkpoint(trained):
    """The best measured one, the last, a step; the fine-tuned model where there is one."""
    assert find_checkpoint(trained, "last")[0] == 2
    assert find_checkpoint(trained, "best")[0] == 2
    assert find_checkpoint(trained, "1")[0] == 1
    with pytest.raises(LookupError, match="no fine-tuned model"):
        find_checkpoint(trained, "start")


@pytest.mark.parametrize(
    "words, expected",
    [
        (["RUN", "full"], "exists"),
        (["RUN", "."], "is the current folder"),
        (["nowhere", "out"], "no such folder"),
        (["full", "out"], "holds no training run"),
        (["RUN", "out", "--checkpoint", "7"], "those of steps 1, 2"),
        (["RUN", "out", "--checkpoint", "newest"], "expected best, last, start or a step"),
        (["RUN", "out", "--checkpoint", "start"], "no fine-tuned model"),
        (["RUN"], "rlvr export"),
    ],
)
def test_bad_input(trained, tmp_path, words, expected, capsys, monkeypatch):
    """One line, exit code 2, nothing is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    assert rlvr(["export", *[str(trained) if word == "RUN" else word for word in words]]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert expected in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]


TOKEN = "hf_abcdefghijklmnop"


@pytest.mark.parametrize("most", [0, 50, 20_000])
def test_a_file_that_cannot_be_written_is_one_line(trained, tmp_path, capsys, most):
    """With the reason of the first one; nothing is left."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        assert rlvr(["export", str(trained), str(tmp_path / "out")]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "File too large" in error
    assert "[(" not in error
    assert list(tmp_path.iterdir()) == []


class Hub:
    """A stand-in for HfApi: what it holds, what was uploaded, and what it raises."""

    def __init__(self, held: tuple[str, ...] = (), error: Exception | None = None) -> None:
        self.held, self.error = held, error
        self.made: list[tuple[str, bool]] = []
        self.files: dict[str, bytes] = {}
        self.deleted: list[str] | None = None

    def repo_exists(self, repo: str) -> bool:
        if self.error:
            raise self.error
        return repo in self.held

    def create_repo(self, repo: str, *, private: bool) -> None:
        self.made.append((repo, private))

    def upload_folder(
        self, *, repo_id: str, folder_path: Path, commit_message: str, delete_patterns: list[str] | None
    ) -> str:
        self.deleted = delete_patterns
        self.files = {path.name: path.read_bytes() for path in Path(folder_path).iterdir()}
        return commit_message


@pytest.mark.parametrize("flags, private", [([], True), (["--public"], False)])
def test_push(trained, monkeypatch, flags, private):
    """A private repository unless asked for otherwise; what is uploaded is the export."""
    hub = Hub()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    assert rlvr(["push", str(trained), "me/mine", "--checkpoint", "last", *flags]) == 0
    assert hub.made == [("me/mine", private)]
    assert (
        hub.files["model.safetensors"] == (trained / "checkpoints" / "step-000002" / "model.safetensors").read_bytes()
    )
    assert hub.files["README.md"].decode().count("# mine") == 1
    assert "optimizer.safetensors" not in hub.files


@pytest.mark.parametrize(
    "hub, repo, expected",
    [
        (Hub(held=("me/mine",)), "me/mine", "the repository me/mine exists; --update commits to it"),
        (Hub(error=OSError("401 Client Error")), "me/mine", "cannot push to me/mine: 401 Client Error"),
        (Hub(error=ConnectionError()), "me/mine", "cannot push to me/mine: ConnectionError"),
        (Hub(error=OSError(f"denied: Bearer {TOKEN}")), "me/mine", "cannot push to me/mine: denied: Bearer [key]"),
        (Hub(error=OSError(f"{TOKEN!r}\n again")), "me/mine", "cannot push to me/mine: '[key]' again"),
        (Hub(error=KeyError("id")), "me/mine", "cannot push to me/mine: an unexpected answer: KeyError('id')"),
        (Hub(), "me/mine/more", "is no name of a repository"),
        (Hub(), "../mine", "is no name of a repository"),
    ],
)
def test_a_push_that_fails(trained, monkeypatch, capsys, hub, repo, expected):
    """One line, exit code 2, and nothing was uploaded."""
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: TOKEN)
    assert rlvr(["push", str(trained), repo]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert expected in error
    assert hub.files == {}


def test_a_push_to_a_repository_that_exists(trained, monkeypatch):
    """With --update it is committed to, and not made again."""
    hub = Hub(held=("me/mine",))
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    assert rlvr(["push", str(trained), "me/mine", "--update"]) == 0
    assert hub.made == []
    assert "config.json" in hub.files
    stale = ["adapter_config.json", "adapter_model.safetensors", "base/model.safetensors", "vocab.json"]
    stale += ["model-00001-of-00002.safetensors", "model.safetensors.index.json", "pytorch_model.bin"]
    for name in stale:
        assert any(fnmatch(name, pattern) for pattern in hub.deleted or ())
    assert not any(fnmatch(name, pattern) for name in ("LICENSE", "plot.png") for pattern in hub.deleted or ())


def adapter_on(folder: Path, base: str) -> None:
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))


@pytest.mark.parametrize("base", ["/home/me/base", "FOLDER", "runs/a/checkpoints/step-000001"])
def test_an_adapter_that_nobody_could_load_is_not_pushed(tmp_path, base):
    """Its base is a folder of this machine; one of the hub, or in the adapter's own folder, passes."""
    (tmp_path / "there").mkdir()
    adapter_on(tmp_path, str(tmp_path / "there") if base == "FOLDER" else base)
    assert own_base(tmp_path) == (str(tmp_path / "there") if base == "FOLDER" else base)
    adapter_on(tmp_path, "org/name")
    assert own_base(tmp_path) == ""
    adapter_on(tmp_path, base)
    (tmp_path / "base").mkdir()
    assert own_base(tmp_path) == ""


@pytest.mark.parametrize("model", ["/home/me/qwen", "runs/mine", "~/models/base"])
def test_a_folder_is_no_model_of_the_hub(trained, tmp_path, monkeypatch, model):
    """Though its name, or what is left of it, has the form of one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "copy").mkdir()
    record = json.loads((trained / "config.json").read_text())
    record["model"]["name"] = model
    (tmp_path / "copy" / "config.json").write_text(json.dumps(record))
    facts = facts_of(tmp_path / "copy", 2, tmp_path, "mine", "best")
    assert "base_model:" not in model_card(facts)
    record["model"]["name"] = "org/name"
    (tmp_path / "copy" / "config.json").write_text(json.dumps(record))
    assert 'base_model: "org/name"' in model_card(facts_of(tmp_path / "copy", 2, tmp_path, "mine", "best"))


@pytest.mark.parametrize("chosen, said", [("best", True), ("last", False), ("2", False)])
def test_the_card_tells_of_the_choice(trained, tmp_path, chosen, said):
    """The best of several evaluations on the same problems looks better than it is."""
    run = with_evaluations(trained, tmp_path / "run", s0=0.1, s1=0.2, s2=0.3)
    _, folder = find_checkpoint(run, chosen)
    card = model_card(facts_of(run, 2, folder, "mine", chosen))
    assert ("the best of 2 evaluations" in card) == said


def with_evaluations(run: Path, folder: Path, **values: float) -> Path:
    """Return a copy of a run with other figures of held-out pass@1, by step."""
    shutil.copytree(run, folder)
    rows = [json.loads(line) for line in (run / "eval.jsonl").read_text().splitlines()]
    changed = [{**rows[0], "step": int(step[1:]), "pass@1": value, "score": value} for step, value in values.items()]
    (folder / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in changed))
    return folder


def card_of(run: Path, out: Path, *flags: str) -> str:
    assert rlvr(["export", str(run), str(out), *flags]) == 0
    return (out / "README.md").read_text()


def test_the_card_calls_best_only_what_is_better_than_others(trained, tmp_path):
    """Not the only policy that was measured, not one below the start; then it says that it is below."""
    better = with_evaluations(trained, tmp_path / "a", s0=0.1, s1=0.2, s2=0.3)
    assert "chosen as the best of 2 evaluations" in card_of(better, tmp_path / "a-out")
    only = with_evaluations(trained, tmp_path / "b", s0=0.1, s2=0.3)
    assert "the best of" not in card_of(only, tmp_path / "b-out")
    worse = with_evaluations(trained, tmp_path / "c", s0=0.5, s1=0.1, s2=0.2)
    card = card_of(worse, tmp_path / "c-out")
    assert "the best of" not in card
    assert "**This checkpoint is below its start: held-out pass@1 0.200 " in card
    assert "**The run ended below its start: held-out pass@1 0.200 " in card
    assert "below its start" not in card_of(better, tmp_path / "d-out")


def test_a_damaged_checkpoint_is_not_passed_over_in_silence(trained, tmp_path, capsys):
    """`last` is then the one before it, and stderr says so; `--run.start-from` likewise."""
    run = with_evaluations(trained, tmp_path / "run", s0=0.1)
    weights = run / "checkpoints" / "step-000002" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    card_of(run, tmp_path / "out", "--checkpoint", "last")
    said = capsys.readouterr()
    assert "step-000002 is damaged (model.safetensors has" in said.err
    assert "step-000001 with a model card" in said.out
    assert start_from(run).name == "step-000001"
    assert "step-000002 is damaged" in capsys.readouterr().err

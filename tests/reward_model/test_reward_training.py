"""Training reward models: pairs, the loss, what is measured, and `rlvr rm` from end to end."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from rlvr.commands.cli import main
from rlvr.commands.rm.launch import launch_reward_model
from rlvr.config import ModelConfig, OptimConfig
from rlvr.config.reward_model import BaseModelConfig, PairsConfig, RewardConfig, RewardRunConfig, RewardTrainConfig
from rlvr.core.types import Completion, Group, Problem, RunError, correct, error, incorrect
from rlvr.model.load.policy import load_policy
from rlvr.model.load.tiny import tiny_tokenizer
from rlvr.model.memory.estimate import shape_of
from rlvr.model.optim.sharding import make_mesh
from rlvr.reward_model import RewardModel
from rlvr.reward_model.preferences import PreferencePair, pairs_of, read_pairs, split_by_prompt, write_pairs
from rlvr.reward_model.scorer import load_classifier
from rlvr.reward_model.training import (
    bradley_terry,
    calibration,
    clustered_share,
    load_trainer,
    measure,
    microbatches,
    num_training_steps,
    set_padding,
    train_reward_model,
)
from rlvr.training.evaluation.passk import estimate_mean
from tests.helpers import warm
from tests.helpers.models import tiny_policy
from tests.helpers.processes import run_processes
from tests.helpers.sharded import ALONE, CPU, largest_difference

LETTERS = "abcdefgh"
# Better is what ends with its prompt's letter.
PAIRS = [
    PreferencePair(f"{a}{i} ", f"{b}{i} {a}", f"{b}{i} {b}")
    for i in range(6)
    for a in LETTERS
    for b in LETTERS
    if a != b
]

PACK = '''
from rlvr import Problem, Task, register_task


def even_length(problem, completion):
    """Something that a random policy does now and then."""
    return len(completion) % 2 == 0


@register_task("lengths")
def lengths(*, num_train: int = 12) -> Task:
    """Any text of even length."""
    problems = [Problem(str(i), f"{i}+{i}=", "") for i in range(num_train + 2)]
    return Task("lengths", problems[:num_train], problems[num_train:], even_length)


def never(problem, completion):
    return False
'''


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> str:
    """The folder of a random tiny policy."""
    folder = tmp_path_factory.mktemp("policy")
    load_policy(ModelConfig(device="cpu"), corpus=["0123456789+= " + LETTERS]).save(folder)
    return str(folder)


def trainer(policy: str, *, seed: int = 0, **options):
    return load_trainer(BaseModelConfig(device="cpu", **options), policy, seed=seed)


def train_on_pairs(policy: str, *, seed: int = 0, tokens_per_microbatch: int = 16384, **options):
    """Four steps on 32 pairs; the trainer and its numbers."""
    made = trainer(policy, seed=seed, **options)
    numbers: list[dict[str, float]] = []
    train_reward_model(
        made,
        PAIRS[:32],
        RewardTrainConfig(epochs=2, batch_size=16),
        OptimConfig(lr=1e-3, tokens_per_microbatch=tokens_per_microbatch),
        accelerator=Accelerator(cpu=True),
        seed=seed,
        on_step=numbers.append,
    )
    return made, numbers


def test_bradley_terry_by_hand():
    """-log sigmoid(2) = .126928, with a margin of 1 -log sigmoid(1) = .313262; equal scores give log 2."""
    scores = torch.tensor([[2.0, 0.0], [2.0, 0.0], [1.0, 1.0]])
    parts = [bradley_terry(scores[i : i + 1], torch.tensor([m])).item() for i, m in enumerate((0.0, 1.0, 0.0))]
    assert parts == pytest.approx([0.126928, 0.313262, math.log(2)], abs=1e-6)
    assert bradley_terry(scores, torch.tensor([0.0, 1.0, 0.0])).item() == pytest.approx(sum(parts))


def test_microbatches_do_not_change_the_result(policy):
    """Cut to one pair each, the losses and the first gradient are those of the whole batch."""
    (_, whole), (_, cut) = train_on_pairs(policy), train_on_pairs(policy, tokens_per_microbatch=1)
    assert [n["step"] for n in whole] == [1, 2, 3, 4]
    assert [n["loss"] for n in whole] == pytest.approx([n["loss"] for n in cut], rel=1e-3)
    assert whole[0]["loss"] == pytest.approx(cut[0]["loss"], rel=1e-5)
    assert whole[0]["grad_norm"] == pytest.approx(cut[0]["grad_norm"], rel=1e-4)


def test_microbatches_are_cut_by_memory(policy, monkeypatch):
    """Where the device has memory for fewer tokens than the setting allows, they decide; bit for bit."""
    _, cut = train_on_pairs(policy, tokens_per_microbatch=50)
    monkeypatch.setattr("rlvr.model.memory.estimate.fitting_tokens", lambda *asked: 50)
    assert train_on_pairs(policy)[1] == cut


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_the_estimate_of_memory_knows_a_reward_model(policy, lora_rank):
    """Its parameters and adapters are counted; the score head is trained whole."""
    made = trainer(policy, lora_rank=lora_rank)
    shape = shape_of(made)
    trained_weights = sum(weight.numel() for weight in made.parameters())
    whole = sum(weight.numel() for weight in made.model.parameters())
    assert shape.parameters == (whole - trained_weights if lora_rank else whole)
    assert not lora_rank or shape.adapters(lora_rank) + shape.hidden == trained_weights


def test_microbatches_hold_whole_pairs_within_the_limit(policy):
    """Order is kept; a part is at most so many tokens wide and high, or one pair."""
    encoded = [trainer(policy).encode(pair) for pair in PAIRS[:10]]
    width = len(encoded[0][0].ids)
    parts = list(microbatches(encoded, 2 * 3 * width))
    assert [len(part) for part in parts] == [3, 3, 3, 1]
    assert [pair for part in parts for pair in part] == encoded


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_training_is_a_function_of_the_seed(policy, lora_rank):
    """Another call gives the same bits whatever was drawn before; another seed another head and order."""
    _, first = train_on_pairs(policy, lora_rank=lora_rank)
    torch.rand(7)
    _, again = train_on_pairs(policy, lora_rank=lora_rank)
    _, other = train_on_pairs(policy, lora_rank=lora_rank, seed=1)
    assert first == again
    assert first[0]["loss"] != other[0]["loss"]


def test_lora_trains_adapters_and_head_and_merges_them(policy, tmp_path):
    """The trunk's own weights stay; what is saved is a plain classifier with the trainer's scores."""
    made, _ = train_on_pairs(policy, lora_rank=4)
    names = {name for name, weight in made.model.named_parameters() if weight.requires_grad}
    assert names
    assert all("lora_" in name or "score" in name for name in names)
    assert any("score" in name for name in names)
    with torch.no_grad():
        expected = made.scores([made.encode(PAIRS[0])])[0].tolist()
    made.save(tmp_path)
    verifier = RewardModel(model=str(tmp_path), device="cpu")
    found = [verifier(Problem("p", PAIRS[0].prompt), text).score for text in (PAIRS[0].chosen, PAIRS[0].rejected)]
    assert found == pytest.approx(expected, abs=1e-4)


def test_every_pair_is_seen_in_every_epoch():
    """10 pairs in batches of 4 for 2 epochs: 5 steps; a batch larger than all pairs is all of them."""
    assert num_training_steps(10, RewardTrainConfig(epochs=2, batch_size=4)) == 5
    assert num_training_steps(10, RewardTrainConfig(epochs=3, batch_size=32)) == 3


def test_a_padding_token_is_found(policy):
    """None, or the end token: the unknown token, which is free, takes the place."""
    for pad in (None, "<eos>"):
        tokenizer = tiny_tokenizer(["ab"])
        tokenizer.pad_token = pad
        classifier, _ = load_classifier(policy, device="cpu", dtype="float32", num_labels=1)
        set_padding(tokenizer, classifier.model)
        assert tokenizer.pad_token == "<unk>"
        assert classifier.model.config.pad_token_id == tokenizer.unk_token_id


def test_accuracy_has_an_interval_over_prompts():
    """Prompts count by their pairs, and as the unit: with one pair each it is the interval of pass@1; 100 right of 100
    leave room for what was not drawn."""

    def interval(hits: list[bool], clusters: list[str]) -> tuple[float, float, float]:
        found = clustered_share(hits, clusters)
        return found.mean, found.low, found.high

    singles, tens = [str(i) for i in range(100)], [str(i // 10) for i in range(100)]
    assert interval([True, True, False, False], ["a", "a", "b", "b"]) == (0.5, 0.0, 1.0)
    wide, estimate = interval([True] * 60 + [False] * 40, singles), estimate_mean([1.0] * 60 + [0.0] * 40)
    assert wide == pytest.approx((0.6, estimate.low, estimate.high))
    assert interval([True] * 100, singles)[1:] == pytest.approx((0.955, 1.0), abs=2e-3)
    assert interval([True] * 60 + [False] * 40, tens)[1] < wide[1] - 0.15
    assert interval([True, False], ["a", "a"]) == (0.5, 0.0, 1.0)


def test_sizes_of_prompts_count():
    """Three pairs of one prompt and one of another: share 3/4, not the mean of the prompts, 1/2."""
    assert clustered_share([True, True, True, False], ["a", "a", "a", "b"]).mean == 0.75


def test_calibration_by_hand():
    """Four pairs with confidence .75, three right: no error. With confidence .75 and one right: |.75 - .25|."""
    d = math.log(3)
    ece, table = calibration([d, d, d, -d])
    assert ece == pytest.approx(0)
    assert table == [{"from": 0.75, "pairs": 4, "confidence": pytest.approx(0.75), "accuracy": 0.75}]
    assert calibration([d, -d, -d, -d])[0] == pytest.approx(0.5)
    assert calibration([0.0])[0] == pytest.approx(0.0)
    assert calibration([-1000.0])[0] == pytest.approx(1.0)


def test_pairs_of_a_group_are_distinct_right_and_wrong_texts():
    """Two right texts (one twice), two wrong ones: four pairs; an error is neither; a limit draws some of them."""
    texts = ["r1", "r1", "r2", "w1", "w2", "e"]
    verdicts = (correct(), correct(), correct(), incorrect(), incorrect(), error("x"))
    group = Group(Problem("p", "q"), (1,), tuple(Completion(text) for text in texts), verdicts)
    pairs = pairs_of(group, limit=10, seed=0)
    assert {(p.chosen, p.rejected) for p in pairs} == {("r1", "w1"), ("r1", "w2"), ("r2", "w1"), ("r2", "w2")}
    assert {p.prompt for p in pairs} == {"q"}
    assert pairs_of(group, limit=2, seed=0) == pairs[:2]
    orders = {tuple((p.chosen, p.rejected) for p in pairs_of(group, limit=2, seed=seed)) for seed in range(10)}
    assert len(orders) > 1


def test_a_prompt_is_on_one_side_of_the_split():
    """About a share of the prompts is held out, the same ones when the order changes."""
    train, held = split_by_prompt(PAIRS, 0.25, seed=0)
    assert not {p.key for p in train} & {p.key for p in held}
    assert len({p.key for p in held}) == 12  # of 48
    assert len(train) + len(held) == len(PAIRS)
    assert {p.key for p in split_by_prompt(PAIRS[::-1], 0.25, seed=0)[1]} == {p.key for p in held}
    assert {p.key for p in split_by_prompt(PAIRS, 0.25, seed=1)[1]} != {p.key for p in held}
    with pytest.raises(ValueError, match="1 prompts; expected at least 2"):
        split_by_prompt(PAIRS[:1], 0.5, seed=0)


def test_pairs_are_read_as_they_were_written(tmp_path):
    """Prompts as text and as messages, with and without a margin; blank lines are skipped."""
    pairs = [PreferencePair("p", "a", "b", 0.5), PreferencePair([{"role": "user", "content": "q"}], "a", "b")]
    path = tmp_path / "pairs.jsonl"
    write_pairs(path, pairs)
    path.write_text(path.read_text() + '\n\n{"prompt": "x", "chosen": "1", "rejected": "2", "more": 3}\n')
    assert read_pairs(path) == [*pairs, PreferencePair("x", "1", "2")]


GOOD = '{"prompt": "p", "chosen": "a", "rejected": "b"}\n'


def test_a_folder_in_use_and_the_wrong_command_are_one_line(capsys, tmp_path, policy):
    """A folder in use; the wrong command. Others are in tests/golden/bad_input.txt."""

    def rejected_answers(*argv: str) -> str:
        assert main(argv) == 2
        return capsys.readouterr().err

    path = tmp_path / "pairs.jsonl"
    out = ("--run.out-dir", str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    record = {key: {} for key in ("run", "pairs", "train", "versions")}
    (tmp_path / "run" / "config.json").write_text(json.dumps(record))
    (tmp_path / "run" / "model-0").mkdir()
    assert "holds a run already" in rejected_answers("rm", "rm_pairs", "--pairs.policy", policy, *out)
    (tmp_path / "run" / "pairs.jsonl").write_text(GOOD)
    inside = ("--pairs.file", str(tmp_path / "run" / "pairs.jsonl"), "--model.name", policy, "--run.overwrite")
    path.write_text(GOOD.replace('"p"', '"q"') + GOOD)
    (tmp_path / "run" / "pairs.jsonl").write_text(path.read_text())
    assert "pairs.jsonl lies in --run.out-dir" in rejected_answers("rm", "rm_pairs", *inside, *out)
    assert read_pairs(tmp_path / "run" / "pairs.jsonl") == read_pairs(path)
    assert "rlvr rm rm_pairs" in rejected_answers("train", "rm_pairs")
    assert "rlvr train tiny_math" in rejected_answers("rm", "tiny_math")
    assert main(["list"]) == 0
    assert "rm_pairs" in capsys.readouterr().out


def config(tmp_path: Path, **groups) -> RewardConfig:
    made = RewardConfig(
        run=RewardRunConfig(out_dir=tmp_path / "run"),
        model=BaseModelConfig(device="cpu"),
        train=RewardTrainConfig(epochs=3, batch_size=32),
        optim=OptimConfig(lr=1e-3, schedule="linear"),
    )
    for name, values in groups.items():
        made = dataclasses.replace(made, **{name: dataclasses.replace(getattr(made, name), **values)})
    return made


def test_a_model_is_trained_from_a_file_and_scores_as_measured(tmp_path, policy):
    """On pairs that can be told apart; accuracy, logs, and what others load."""
    path = tmp_path / "pairs.jsonl"
    write_pairs(path, PAIRS)
    result = launch_reward_model(config(tmp_path, pairs={"file": path, "held_out": 0.2}, model={"name": policy}))
    assert result["accuracy"] >= 0.9
    run = tmp_path / "run"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = num_training_steps(len(read_pairs(run / "pairs.jsonl")), RewardTrainConfig(epochs=3, batch_size=32))
    assert [(line["model"], line["step"]) for line in lines] == [(0, s + 1) for s in range(steps)]
    assert json.loads((run / "config.json").read_text())["train"]["epochs"] == 3
    measured = [json.loads(line) for line in (run / "eval.jsonl").read_text().splitlines()]
    assert [line["accuracy"] for line in measured] == [result["accuracy"]]

    held_out = read_pairs(run / "held_out.jsonl")
    AutoModelForSequenceClassification.from_pretrained(run / "model-0")
    verifier = RewardModel(model=str(run / "model-0"), device="cpu")
    texts = {(p.key, text): (Problem(p.key, p.prompt), text) for p in held_out for text in (p.chosen, p.rejected)}
    scores = dict(zip(texts, (verdict.score for verdict in verifier.verify_batch(list(texts.values())))))
    right = [scores[p.key, p.chosen] > scores[p.key, p.rejected] for p in held_out]
    assert sum(right) / len(right) == pytest.approx(result["accuracy"])
    mean = sum(scores.values()) / len(scores)
    assert mean == pytest.approx(0, abs=1e-3)
    assert sum((s - mean) ** 2 for s in scores.values()) / len(scores) == pytest.approx(1, abs=1e-3)


def test_pairs_are_made_from_a_policy_and_a_verifier(tmp_path, policy, monkeypatch):
    """Within one problem, the better one is what the verifier calls correct; at most so many of a problem."""
    (tmp_path / "my_pairs_pack.py").write_text(PACK)
    monkeypatch.syspath_prepend(tmp_path)
    pairs = PairsConfig(
        task="my_pairs_pack:lengths", policy=policy, num_problems=8, samples=6, max_new_tokens=5, per_problem=3,
        held_out=0.3,
    )  # fmt: skip
    launch_reward_model(dataclasses.replace(config(tmp_path), pairs=pairs))
    made = [*read_pairs(tmp_path / "run" / "pairs.jsonl"), *read_pairs(tmp_path / "run" / "held_out.jsonl")]
    assert made
    assert all(len(p.chosen) % 2 == 0 and len(p.rejected) % 2 == 1 for p in made)
    counts = [sum(p.prompt == prompt for p in made) for prompt in {p.prompt for p in made}]
    assert max(counts) <= 3
    with pytest.raises(RunError, match=r"no pairs: none of 8 problems.*48 incorrect"):
        launch_reward_model(
            dataclasses.replace(
                config(tmp_path, run={"overwrite": True}),
                pairs=dataclasses.replace(pairs, verifier="my_pairs_pack:never"),
            )
        )


# `pairs.also`: pairs of earlier policies, trained on beside those of a newer one.

EARLIER = [PreferencePair(f"{n}+1=", f"{n} a", f"{n} b") for n in range(10)]
LATER = [PreferencePair(f"{n}+1=", f"{n} c", f"{n} d") for n in range(5, 12)]


def launch_training(tmp_path: Path, base: str, **pairs) -> tuple[list[PreferencePair], list[PreferencePair]]:
    """Train for one pass; return what was trained on, and what was held out."""
    given = {"pairs": {"held_out": 0.3, **pairs}, "model": {"name": base}, "train": {"epochs": 1}}
    launch_reward_model(config(tmp_path, run={"overwrite": True}, **given))
    return read_pairs(tmp_path / "run" / "pairs.jsonl"), read_pairs(tmp_path / "run" / "held_out.jsonl")


def write_pair_file(tmp_path: Path, name: str, pairs: list[PreferencePair]) -> Path:
    path = tmp_path / name
    write_pairs(path, pairs)
    return path


def test_pairs_of_several_files(tmp_path, policy):
    """All are there once; those of one prompt are on one side, of whichever file they are."""
    files = [
        write_pair_file(tmp_path, "first.jsonl", EARLIER[:4]),
        write_pair_file(tmp_path, "second.jsonl", EARLIER[4:]),
    ]
    train, held = launch_training(
        tmp_path, policy, file=write_pair_file(tmp_path, "later.jsonl", LATER), also=tuple(files)
    )
    assert sorted((*train, *held), key=str) == sorted((*EARLIER, *LATER), key=str)
    assert not {pair.prompt for pair in train} & {pair.prompt for pair in held}
    assert len({pair.prompt for pair in held}) == 4  # .3 of 12 prompts


@pytest.mark.parametrize(("pattern", "sampled"), [("[abcd]", True), ("never written", False)])
def test_pairs_of_a_file_beside_sampled_ones(tmp_path, policy, pattern, sampled):
    """Where the newer policy's completions give no pairs, those of the file are trained on by themselves."""
    train, held = launch_training(
        tmp_path,
        policy,
        policy=policy,
        task="arithmetic",
        num_problems=16,
        max_new_tokens=4,
        verifier="regex",
        verifier_option=(f"pattern={pattern}", "match=search"),
        also=(write_pair_file(tmp_path, "first.jsonl", EARLIER),),
    )
    found = [*train, *held]
    assert all(pair in found for pair in EARLIER)
    assert (len(found) > len(EARLIER)) == sampled


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "none.jsonl"), ("", "the file is empty"), ('{"prompt": "a"}\n', "line 1: no chosen and no rejected")],
)
def test_a_bad_file_is_one_line(tmp_path, capsys, policy, content, message):
    """Before anything is sampled or written."""
    path = tmp_path / ("none.jsonl" if content is None else "bad.jsonl")
    if content is not None:
        path.write_text(content)
    flags = ["--pairs.policy", policy, "--pairs.also", str(path), "--run.out-dir", str(tmp_path / "run")]
    assert main(["rm", "rm_pairs", *flags]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.survey
@pytest.mark.timeout(900)
def test_the_recipe_reaches_nine_tenths(tmp_path, capsys):
    """Fine-tuning, sampling and training by the recipe as it stands; at least 90 % of held-out pairs told apart."""
    assert main(["rm", "rm_pairs", "--run.out-dir", str(tmp_path / "rm")]) == 0
    measured = json.loads((tmp_path / "rm" / "eval.jsonl").read_text())
    assert measured["accuracy"] >= 0.9
    assert measured["pairs"] >= 100


# Reward models that several processes train, with whole weights and in shards.

pytestmark = pytest.mark.usefixtures("one_thread")

SHARDED_PAIRS = [PreferencePair(f"{i}+{i}=", f"{2 * i}", f"{3 * i} 1234" * (1 + i % 3), 0.0) for i in range(12)]


def train(policy: Path, shard: int, accelerator, **options) -> tuple[dict[str, Tensor], list[dict], dict]:
    """Train for five steps of 5 pairs, of which no number of microbatches divides evenly."""
    config = BaseModelConfig(device="cpu", **options)
    trainer = load_trainer(config, str(policy), seed=0, mesh=make_mesh(shard, CPU))
    steps: list[dict] = []
    train_reward_model(
        trainer,
        SHARDED_PAIRS,
        RewardTrainConfig(epochs=2, batch_size=5),
        OptimConfig(lr=1e-3, tokens_per_microbatch=60),
        accelerator=accelerator,
        seed=0,
        on_step=steps.append,
    )
    whole = trainer.gather()
    return (
        {name: weight.detach() for name, weight in whole.model.named_parameters()},
        steps,
        measure(whole, SHARDED_PAIRS),
    )


@pytest.mark.parametrize("options", [{}, {"lora_rank": 2}], ids=["all weights", "adapters"])
def test_two_processes_train_the_reward_model_of_one(tmp_path, options):
    """Replicas and shards: weights within a tenth of the learning rate, the same metrics of steps and of pairs."""
    tiny_policy().save(tmp_path)
    weights, steps, measured = train(tmp_path, 1, ALONE, **options)
    for shard in (1, 2):
        for found in run_processes(
            2, lambda rank, shard=shard: train(tmp_path, shard, Accelerator(cpu=True), **options)
        ):
            assert largest_difference(found[0], weights) < 1e-4
            for here, there in zip(found[1], steps, strict=True):
                assert here == pytest.approx(there, rel=1e-4, abs=1e-5)
            assert found[2]["accuracy"] == measured["accuracy"]
            assert found[2]["mean"] == pytest.approx(measured["mean"], abs=1e-4)


def test_several_processes_need_a_policy_by_name(tmp_path):
    """In one line, before anything is trained or written."""
    for done in warm.run_together(2, ["rm", "rm_pairs", "--run.out-dir", str(tmp_path / "rm")]):
        assert done.returncode == 2
        assert "--pairs.policy" in done.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_the_command_trains_a_reward_model_in_shards(tmp_path):
    """From a file of pairs: one model, whole, and one line of metrics a step."""
    tiny_policy().save(tmp_path / "policy")
    write_pairs(tmp_path / "pairs.jsonl", SHARDED_PAIRS)
    flags = (
        f"--pairs.file {tmp_path}/pairs.jsonl --model.name {tmp_path}/policy --pairs.held-out 0.3 --model.device cpu"
    )
    command = ["rm", "rm_pairs", *flags.split(), "--run.out-dir", str(tmp_path / "rm"), "--model.shard", "2"]
    for done in warm.run_together(2, command):
        assert done.returncode == 0, done.stderr[-3000:]
    tensors = load_file(tmp_path / "rm" / "model-0" / "model.safetensors")
    assert tensors["score.weight"].shape == (1, 128)
    assert all(bool(torch.isfinite(value).all()) for value in tensors.values())
    lines = (tmp_path / "rm" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == len(set(lines)) > 0

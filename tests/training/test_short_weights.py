"""Weights in bfloat16, offloaded states, 8-bit AdamW; several processes train as one."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rlvr.config import ModelConfig
from rlvr.launch import execute, launch
from rlvr.model.load.policy import load_policy
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.model.optim import optimizer as optim
from rlvr.model.optim.optimizer import Beside
from tests.helpers import warm
from tests.helpers.files import lines as read_lines
from tests.helpers.resuming import check_same, results, small
from tests.helpers.runs import make_run, with_settings

OFTEN = {"verifier_option": ("pattern=7", "match=search")}  # a reward that most groups earn in part
SHORT = {"model": {"weights": "bfloat16"}, "run": OFTEN}
bitsandbytes = pytest.param(
    {**SHORT, "optim": {"name": "adamw8bit"}},
    id="8-bit",
    marks=pytest.mark.skipif(
        importlib.util.find_spec("bitsandbytes") is None, reason="the extra bitsandbytes is not installed"
    ),
)
CORPUS = ["0123456789+-= abc"]


class Away(Beside):
    """A place apart from the weights, as pinned memory is; counts what passes."""

    passed = 0

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Keep a copy."""
        return tensor.clone()

    def fetch(self, part: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Hand out a copy."""
        Away.passed += part.numel()
        return part.clone()

    def store(self, part: torch.Tensor, updated: torch.Tensor) -> None:
        """Take it back."""
        part.copy_(updated)


@pytest.fixture
def offloading(monkeypatch: pytest.MonkeyPatch) -> type[Away]:
    """optim.offload on a machine without a GPU: the state lies apart from the weights, in the same memory."""
    monkeypatch.setattr(optim, "Pinned", Away)
    for module in (optim, execute):
        monkeypatch.setattr(module, "check_optimizer", lambda config, device: None)
    monkeypatch.setattr(Away, "passed", 0)
    return Away


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(SHORT, id="bfloat16"),
        pytest.param({**SHORT, "algo": {"name": "ppo"}}, id="critic"),
        bitsandbytes,
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, settings: dict) -> None:
    """Weights, optimizer with masters, rollouts: byte for byte; the weights are the roundings of the masters."""
    for name, lengths in (("whole", [3]), ("parts", [2, 3])):
        for steps in lengths:
            launch(with_settings(small(tmp_path / name, steps=steps), **settings))
    check_same(results(tmp_path / "whole", 3), results(tmp_path / "parts", 3))
    folder = tmp_path / "parts" / "checkpoints" / "step-000003"
    weights = load_file(folder / "model.safetensors")
    state = load_file(folder / "optimizer.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    masters = [tensor for name, tensor in state.items() if name.endswith(".master")]
    assert {tensor.dtype for tensor in masters} == {torch.float32}
    assert sum(m.numel() for m in masters) == sum(w.numel() for w in weights.values())
    rounded = sum(float(master.bfloat16().double().sum()) for master in masters)
    assert rounded == pytest.approx(sum(float(weight.double().sum()) for weight in weights.values()))
    metrics = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert sum(record["grad_norm"] > 0 for record in metrics) >= 2


@pytest.mark.parametrize("settings", [{}, SHORT])
def test_an_offloaded_state_changes_no_number(tmp_path: Path, offloading: type[Away], settings: dict) -> None:
    """Fine-tuning, updates and a resume of a run that was not offloaded."""
    launch(with_settings(small(tmp_path / "beside", steps=3), **settings))
    assert offloading.passed == 0
    launch(with_settings(small(tmp_path / "away", steps=2), **settings, optim={"offload": True}))
    assert offloading.passed > 0
    before = offloading.passed
    launch(with_settings(small(tmp_path / "away", steps=3), **settings))
    assert offloading.passed == before
    check_same(results(tmp_path / "beside", 3), results(tmp_path / "away", 3))


@pytest.mark.parametrize("kind", ["tiny", "folder", "adapter"])
def test_weights_are_stored_in_bfloat16(tmp_path: Path, kind: str) -> None:
    """Of the tiny model, a saved one, and an adapter that is merged; rotary frequencies stay in float32."""
    name = "tiny"
    if kind != "tiny":
        base = load_policy(ModelConfig(device="cpu", lora_rank=4 * (kind == "adapter")), corpus=CORPUS)
        with torch.no_grad():
            for weight in base.parameters():
                weight.add_(torch.full_like(weight, 1e-3))
        base.save(tmp_path)
        name = str(tmp_path)
    long = load_policy(ModelConfig(name=name, device="cpu"), corpus=CORPUS)
    short = load_policy(ModelConfig(name=name, device="cpu", weights="bfloat16"), corpus=CORPUS)
    assert "bfloat16, weights stored in bfloat16 on cpu" in short.describe()
    assert {weight.dtype for weight in short.model.parameters()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in short.model.buffers()} == {torch.float32}
    for a, b in zip(short.parameters(), long.parameters(), strict=True):
        assert torch.equal(a, b.to(torch.bfloat16))
    tokens = torch.tensor([[3, 4, 5, 6, 7, 8]])
    mask = torch.arange(6)[None] > 1
    with torch.no_grad():
        ours, theirs = (token_logprobs(policy, tokens, mask)[0] for policy in (short, long))
    assert ours.dtype is torch.float32
    torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)
    assert short.packs


def test_gradients_and_the_reference_are_as_short(tmp_path: Path) -> None:
    """One update: gradients have the weights' dtype, the frozen copy takes two bytes a weight."""
    run = make_run(tmp_path, model={"weights": "bfloat16", "dtype": "auto"}, reference=True)
    assert run.learner.reference is not None
    assert {weight.dtype for weight in run.learner.reference.model.parameters()} == {torch.bfloat16}
    tokens = torch.tensor([[3, 4, 5, 6]])
    token_logprobs(run.learner.policy, tokens, torch.arange(4)[None] > 1)[0].sum().backward()
    assert {weight.grad.dtype for weight in run.learner.policy.parameters()} == {torch.bfloat16}


FLAGS = (
    "--sft.steps 6 --rollout.problems-per-step 5 --rollout.group-size 4 --eval.every -1 --run.sample-every 0 "
    "--run.steps 3 --run.save-every 1 --run.keep-checkpoints 3 --optim.lr 1e-4 --optim.warmup-steps 0 "
    "--optim.tokens-per-microbatch 300 "
    "--optim.max-grad-norm 1e6 --model.device cpu "
    "--run.task-option num_train=64 num_test=16 num_demonstrations=256"
).split()
VERIFIER = "--run.verifier regex --run.verifier-option pattern=7.*7 match=search".split()
# Sums are taken in another order, as with other microbatches: float32 rounding. A share of a tensor's largest gradient.
GRADIENT_TOLERANCE = 1e-4
# AdamW divides by the root of the second moment, which enlarges the rounding of tiny gradients: so of all weights
# together, as a share of the way that they have moved.
WEIGHT_TOLERANCE = 2e-3
OPTIMIZERS = ("optimizer", "critic_optimizer")


def train(out_dir: Path, processes: int, *flags: str) -> str:
    """Train for three steps on so many processes. Returns what was printed."""
    verifier = () if "--run.verifier-option" in flags else VERIFIER
    arguments = ["train", "tiny_math", *FLAGS, *verifier, *flags, "--run.out-dir", str(out_dir)]
    printed = ""
    for done in warm.run_together(processes, arguments, timeout=280):
        assert done.returncode == 0, done.stderr[-3000:]
        printed += done.stdout
    return printed


def checkpoint(out_dir: Path, step: int, name: str) -> dict[str, Tensor]:
    """A file of tensors of the checkpoint after a step; nothing where there is none (no critic)."""
    path = out_dir / "checkpoints" / f"step-{step:06d}" / f"{name}.safetensors"
    return load_file(path) if path.exists() else {}


def first_moments(out_dir: Path, name: str) -> dict[str, Tensor]:
    """AdamW's first moments after one step: with one minibatch, a tenth of the (unclipped) gradients."""
    return {key: value for key, value in checkpoint(out_dir, 1, name).items() if key.endswith("exp_avg")}


def lines(out_dir: Path, stream: str) -> list[dict]:
    return read_lines(out_dir / f"{stream}.jsonl")


def flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


def assert_the_same_run(one: Path, many: Path) -> None:
    """Check gradients, weights, rollouts and logged figures of two runs; and that the first moved at all."""
    gradients = {f"{name}.{k}": v for name in OPTIMIZERS for k, v in first_moments(one, name).items()}
    others = {f"{name}.{k}": v for name in OPTIMIZERS for k, v in first_moments(many, name).items()}
    assert gradients.keys() == others.keys()
    assert all(bool(value.any()) for value in gradients.values())
    for name, value in gradients.items():
        scale = float(value.abs().max())
        torch.testing.assert_close(others[name], value, atol=GRADIENT_TOLERANCE * scale, rtol=0, msg=name)
    starts = {"model": load_file(one / "start" / "model.safetensors"), "critic": checkpoint(one, 1, "critic")}
    for name, start in starts.items():
        if start:
            weights, others = checkpoint(one, 3, name), checkpoint(many, 3, name)
            moved = (flat(weights) - flat(start)).norm()
            assert moved > 0
            assert (flat(others) - flat(weights)).norm() < WEIGHT_TOLERANCE * moved
    texts = [[line["completion"] for line in lines(folder, "rollouts")] for folder in (one, many)]
    assert texts[0]
    assert texts[0] == texts[1]
    for mine, other in zip(lines(one, "metrics"), lines(many, "metrics"), strict=True):
        for name in mine.keys() & {"reward", "loss", "grad_norm", "entropy", "trained_tokens", "critic/value_loss"}:
            assert other[name] == pytest.approx(mine[name], rel=1e-3, abs=1e-6), name


EASY = "--run.verifier regex --run.verifier-option pattern=7 match=search"
WHITENED = "--run.verifier combine --run.verifier-option parts=length options=length.min=30,length.graded=true,"
WATCHED = "whiten=length --algo reinforce --monitor regex --monitor.verifier-option pattern=7.*7 match=search"


@pytest.mark.slow
@pytest.mark.parametrize(
    "processes,flags",
    [
        (2, ("--algo.minibatches", "2")),
        (3, ("--algo.normalize", "sequence")),
        (
            3,
            f"--rollout.problems-per-step 2 --algo.kl-coef .1 {EASY}".split(),
        ),
        (2, ("--algo.kl-coef", "0.1", "--algo.kl-in", "reward", "--algo", "reinforce")),
        (2, ("--algo", "ppo", "--algo.minibatches", "2", "--critic.lr", "1e-4")),
        (2, ("--algo", "ppo", "--critic.kind", "head", "--critic.warmup", "1")),
        (2, ("--algo", "dpo")),
        (3, ("--curriculum.draw", "signal", "--curriculum.half-life", "1", "--rollout.resample-rounds", "1")),
        (2, tuple(f"{WHITENED}length.unit=characters {WATCHED}".split())),
    ],
    ids=[
        "two minibatches",
        "three processes",
        "three processes, fewer problems",
        "kl in the reward",
        "critic",
        "value head",
        "pairs",
        "curriculum with dynamic sampling",
        "whitened reward with a monitor",
    ],
)
def test_several_processes_give_the_weights_of_one(tmp_path, processes, flags):
    """Problems in uneven shares, also none for one process: the gradients and weights of a single process."""
    train(tmp_path / "one", 1, *flags)
    printed = train(tmp_path / "many", processes, *flags)
    assert f"{processes} processes" in printed
    assert_the_same_run(tmp_path / "one", tmp_path / "many")


COLLECTIVES = """
import json, sys, torch
from pathlib import Path
from accelerate import Accelerator
from rlvr import distributed
from rlvr.distributed import gather, share, sum_gradients, sum_stats, sum_tensor

distributed.BUCKET_ELEMENTS = 5  # several buckets
accelerator = Accelerator(cpu=True)
rank = accelerator.process_index
KINDS = ((3, torch.float32), (4, torch.float32), (2, torch.float64))
weights = [torch.nn.Parameter(torch.zeros(n, dtype=t)) for n, t in KINDS]
weights[0].grad = torch.full((3,), 10.0**rank)
weights[2].grad = torch.full((2,), rank + 1.0, dtype=torch.float64)  # the second has none
sum_gradients(weights, accelerator)
result = {
    "world": accelerator.num_processes,
    "share": list(share(list("abcde"), accelerator)),
    "gathered": gather([rank] * rank, accelerator),
    "sum": sum_tensor(torch.tensor([rank + 1.0]), accelerator).tolist(),
    "gradients": [w.grad.tolist() for w in weights],
    "stats": sum_stats({"b": 1.0, "a": float(rank)}, accelerator, "cpu"),
}
Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(result))
accelerator.wait_for_everyone()  # one that has left would abort the others
accelerator.end_training()
"""


def test_collective_calls_of_three_processes(tmp_path):
    """Shares are parts in order, gathering keeps the order, gradients (also missing ones) and sums add up."""
    (tmp_path / "calls.py").write_text(COLLECTIVES)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", "calls.py", "."]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert [result.pop("share") for result in results] == [["a"], ["b", "c"], ["d", "e"]]
    for result in results:
        assert result == {
            "world": 3,
            "gathered": [1, 2, 2],
            "sum": [6.0],
            "gradients": [[111.0] * 3, [0.0] * 4, [6.0] * 2],
            "stats": {"a": 3.0, "b": 3.0},
        }

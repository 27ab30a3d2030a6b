"""Runs whose config.json has an earlier layout: read, compared and resumed as if it had the present one.

tests/golden/runs holds config.json of two such runs, as they were written.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path

import pytest

from rlvr.commands.arguments import parse
from rlvr.commands.eval import EvalArgs, eval_folder
from rlvr.config import AlgoConfig, Config, CriticConfig, MonitorConfig, to_json
from rlvr.config.records import config_of
from rlvr.launch import launch
from rlvr.recipes.tiny_math import CONFIG, VARIANTS
from rlvr.training.checkpoint.resume import difference, history
from tests.helpers.resuming import check_same, results, small

STORED = Path(__file__).parents[1] / "golden" / "runs"
SHORT = "--run.steps 4 --run.save-every 2 --eval.num-problems 16 --eval.samples 4 --eval.k 1 4".split()
SHORT += "--optim.lr 4e-4 --optim.warmup-steps 0".split()  # defaults of the recipe at that time
FLAGS = {
    "rloo": "--algo rloo --monitor exact".split(),
    "ppo": "--algo ppo --critic.lr 1e-3 --algo.kl-coef 0.02 --algo.kl-in reward".split(),
}


def stored(name: str) -> dict:
    return json.loads((STORED / f"{name}.json").read_text())


def given(name: str, *flags: str) -> Config:
    """What `rlvr train tiny_math` makes of the flags that the stored run's command has today."""
    out = ["--run.out-dir", f"runs/{name}"]
    return parse(Config, [*SHORT, *FLAGS[name], *out, *flags], prog="train", default=CONFIG, variants=VARIANTS)


def record_of(config: Config, held: dict) -> dict:
    return {**json.loads(to_json(config)), "fingerprint": held["fingerprint"], "versions": held["versions"]}


@pytest.mark.parametrize("name", FLAGS)
def test_an_earlier_config_is_the_present_one(name):
    """Algorithm, sampler and monitor are where they belong now, and nothing counts as changed."""
    held = stored(name)
    assert config_of(held) == given(name)
    assert difference(held, record_of(given(name), held)) is None
    assert history(held, record_of(given(name), held), 4) == []
    assert config_of(record_of(given(name), held)) == given(name)


def test_settings_of_groups_that_did_nothing_are_forgotten():
    """The critic's without PPO, the monitor's without one, the engine's with the torch sampler, DPO's beta."""
    held = stored("rloo")
    other = copy.deepcopy(held)
    other["critic"]["lr"], other["vllm"]["lora"], other["algo"]["dpo_beta"] = 1.0, "adapter", 0.7
    other["algo"] |= {"gamma": 0.5, "kl_estimator": "k1", "kl_in": "reward"}
    assert difference(other, record_of(given("rloo"), held)) is None
    plain = copy.deepcopy(held)
    plain["shadow"] |= {"verifier": None, "window": 3}
    assert config_of(plain).monitor is None


def test_settings_that_differ_are_still_told():
    """By their present names."""
    held = stored("ppo")
    assert (
        difference(held, record_of(given("ppo", "--algo.gamma", "0.9"), held)) == "algo.gamma is 1.0 there and 0.9 here"
    )
    assert difference(stored("rloo"), record_of(given("ppo"), held)) == "algo.name is 'rloo' there and 'ppo' here"
    held["rollout"]["sampler"] = "vllm"
    assert difference(held, record_of(given("ppo"), held)) == "sampler.name is 'vllm' there and 'torch' here"
    held["vllm"]["memory_share"], held["rollout"]["max_staleness"] = 0.7, 1
    assert (config_of(held).sampler.gpu_memory_utilization, config_of(held).sampler.max_staleness) == (0.7, 1)


def test_a_run_with_what_its_algorithm_has_no_more_is_refused():
    """RAFT once took any loss: resumed without it, it would compute something else. Importance weights are compared."""
    held = stored("rloo")
    held["algo"] |= {"advantage": "raft", "loss": "auto", "importance": "auto"}
    wanted = record_of(dataclasses.replace(given("rloo"), algo=AlgoConfig("raft")), held)
    assert difference(held, wanted) is None
    held["algo"]["importance"] = "token"
    assert difference(held, wanted) == "algo.importance is 'token' there and 'auto' here"
    held["algo"] |= {"importance": "auto", "loss": "nll"}
    assert difference(held, wanted) is None
    held["algo"]["loss"] = "clip"
    found = difference(held, wanted)
    assert found == "algo.loss 'clip', which raft cannot have any more; go on with the version that began it"


def test_an_earlier_word_of_an_evaluation_is_the_present_one():
    held = stored("rloo")
    held["eval"]["verifier"] = "shadow"
    config_of(held).check()
    assert config_of(held).eval.verifier == "monitor"


def in_earlier_layout(config: Config, record: dict) -> dict:
    """The record of a run as a stored one is laid out."""
    held, now = stored("ppo" if config.critic else "rloo"), json.loads(to_json(config))
    names = {"task_option": "task_options", "verifier_option": "verifier_options", "beta": "dpo_beta"}
    for group in ("run", "model", "rollout", "algo", "optim", "eval", "sft"):
        held[group] |= {names.get(name, name): value for name, value in now[group].items() if name != "name"}
    held["model"]["name"] = now["model"]["name"]
    held["algo"]["advantage"] = {"ppo": "gae"}.get(config.algo.name, config.algo.name)
    held["critic"] |= now["critic"] or {}
    monitor = now["monitor"] or {"verifier": None, "verifier_option": []}
    held["shadow"] |= {{"verifier_option": "options"}.get(name, name): value for name, value in monitor.items()}
    return {**held, **{name: record[name] for name in ("fingerprint", "versions", "threads", "history")}}


@pytest.mark.parametrize("kind", ["monitored", "ppo"])
def test_an_earlier_folder_is_resumed_exactly(tmp_path, kind):
    """Two steps in a folder of the earlier layout, two more: the same weights, rollouts and numbers as four at once."""

    def config(folder: str, steps: int) -> Config:
        made = small(tmp_path / folder, steps=steps)
        if kind == "ppo":
            critic = CriticConfig(lr=1e-3)
            return dataclasses.replace(made, algo=AlgoConfig("ppo", minibatches=2), critic=critic)
        return dataclasses.replace(made, monitor=MonitorConfig("exact"))

    launch(config("whole", 4))
    launch(config("parts", 2))
    path = tmp_path / "parts" / "config.json"
    path.write_text(json.dumps(in_earlier_layout(config("parts", 2), json.loads(path.read_text()))))
    launch(config("parts", 4))
    check_same(results(tmp_path / "whole", 4), results(tmp_path / "parts", 4))
    record = json.loads(path.read_text())
    assert record["algo"]["name"] == ("ppo" if kind == "ppo" else "reinforce")
    assert [entry["changed"] for entry in record["history"]] == [{"run.steps": [2, 4]}]


def test_an_earlier_evaluation_is_resumed(tmp_path):
    """Its settings had another name for the verifier's options, and the sampler's batch size beside the others."""
    args = EvalArgs(
        model="tiny", task="arithmetic", verifier="math", verifier_option=("extract=lenient",), out_dir=tmp_path
    )
    now = {**json.loads(json.dumps(dataclasses.asdict(args), default=str)), "fingerprint": "f"}
    earlier = {name: value for name, value in now.items() if name not in ("verifier_option", "sampler")}
    earlier |= {"option": ["extract=lenient"], "sampler": "torch", "batch_size": 64, "k": [1]}
    (tmp_path / "settings.json").write_text(json.dumps(earlier))
    (tmp_path / "answers.jsonl").write_text("{}\n")
    eval_folder(args, "f").check()
    with pytest.raises(ValueError, match="verifier_option is"):
        eval_folder(dataclasses.replace(args, verifier_option=()), "f").check()

"""A Config written in Python: groups of another class and values of another type are one ValueError from check()."""

from __future__ import annotations

import dataclasses
import json
import pickle

import pytest

from rlvr.algo.algorithms import ALGORITHMS
from rlvr.config import (
    SAMPLERS,
    AlgoConfig,
    Config,
    CriticConfig,
    EvalConfig,
    ModelConfig,
    MonitorConfig,
    OptimConfig,
    RolloutConfig,
    RunConfig,
    TorchSamplerConfig,
    VLLMServerConfig,
    to_json,
)
from rlvr.config.training import read_config

ALGOS = "AlgoConfig"
ANY_SAMPLER = " or ".join(kind.__name__ for kind in SAMPLERS.values())


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({"algo": "rloo"}, f"algo is 'rloo'; expected {ALGOS}"),
        ({"algo": None}, f"algo is None; expected {ALGOS}"),
        ({"algo": {"name": "grpo"}}, "algo is {'name': 'grpo'}; expected"),
        ({"algo": AlgoConfig}, "algo is <class 'rlvr.config.algo.AlgoConfig'>; expected"),
        ({"algo": TorchSamplerConfig()}, "algo is TorchSamplerConfig("),
        ({"sampler": "vllm"}, f"sampler is 'vllm'; expected {ANY_SAMPLER}"),
        ({"monitor": "exact"}, "monitor is 'exact'; expected MonitorConfig or None"),
        ({"algo": AlgoConfig("ppo"), "critic": {}}, "critic is {}; expected CriticConfig or None"),
        ({"rollout": OptimConfig()}, "rollout is OptimConfig("),
        ({"optim": None}, "optim is None; expected OptimConfig"),
        ({"critic": CriticConfig()}, "critic is set, and algo grpo trains none"),
        ({"sampler": VLLMServerConfig(max_staleness=1), "algo": AlgoConfig(importance="none")}, "max_staleness 1"),
    ],
)
def test_a_group_of_another_class_is_refused(groups, expected):
    with pytest.raises(ValueError, match=r"expected|algo|importance") as caught:
        Config(**groups).check()
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({"algo": AlgoConfig(None)}, "algo.name None: expected str"),
        ({"algo": AlgoConfig(["grpo"])}, "algo.name ['grpo']: expected str"),
        ({"monitor": MonitorConfig(None)}, "monitor.verifier None: expected str"),
        ({"run": RunConfig(steps=1.5)}, "run.steps 1.5: expected int"),
        ({"run": RunConfig(seed=True)}, "run.seed True: expected a number"),
        ({"run": RunConfig(out_dir="runs/x")}, "run.out_dir 'runs/x': expected Path"),
        ({"run": RunConfig(task_option="num_train=9")}, "run.task_option 'num_train=9': expected tuple[str, ...]"),
        ({"run": RunConfig(task=None)}, "run.task None: expected str"),
        ({"run": RunConfig(dry_run="no")}, "run.dry_run 'no': expected bool"),
        ({"eval": EvalConfig(k=1)}, "eval.k 1: expected tuple[int, ...]"),
        ({"optim": OptimConfig(lr=None)}, "optim.lr None: expected float"),
        ({"optim": OptimConfig(betas=(0.9,))}, "optim.betas (0.9,): expected tuple[float, float]"),
    ],
)
def test_a_value_of_another_type_is_refused(groups, expected):
    with pytest.raises(ValueError, match="expected") as caught:
        Config(**groups).check()
    assert expected in str(caught.value)


def test_lists_and_whole_numbers_pass():
    """A list where a tuple is, an int where a float is, None where it is allowed."""
    model, rollout = ModelConfig(name="tiny"), RolloutConfig(temperature=1, max_prompt_tokens=None)
    Config(model=model, eval=EvalConfig(k=[1, 8]), rollout=rollout, optim=OptimConfig(betas=[0.9, 0.99])).check()


@pytest.mark.parametrize("sampler", [kind() for kind in SAMPLERS.values()])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_config_survives_pickle_replace_and_json(name, sampler):
    config = Config(algo=AlgoConfig(name), sampler=sampler, monitor=MonitorConfig("exact", verifier_option=("a=1",)))
    config.check()
    assert pickle.loads(pickle.dumps(config)) == config
    assert dataclasses.replace(config) == config
    assert read_config(json.loads(to_json(config))) == config

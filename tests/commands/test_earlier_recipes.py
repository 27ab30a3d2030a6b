"""A recipe written for an earlier version ends with one line that says what to write instead."""

from __future__ import annotations

import pytest

from rlvr.commands.cli import main

HEAD = "from rlvr.config import *\n"
TAIL = "\n\ndef main(config=None):\n    pass\n"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('CONFIG = Config(algo=AlgoConfig(advantage="rloo"))', 'it is AlgoConfig("rloo") and the like, PPOConfig()'),
        ('CONFIG = Config(algo=AlgoConfig("ppo", gamma=0.9))', "'gamma'; it is a setting of PPOConfig"),
        ("CONFIG = Config(algo=AlgoConfig(dpo_beta=0.2))", "it is algo.beta"),
        ("CONFIG = Config(vllm=VLLMConfig())", "'vllm'; it is sampler"),
        ("CONFIG = Config(sampler=VLLMConfig(memory_share=0.3))", "it is sampler.gpu_memory_utilization"),
        ("CONFIG = Config(sampler=VLLMConfig(url='http://x'))", "it is sampler.url"),
        ("CONFIG = Config(shadow=None)", "'shadow'; it is monitor"),
        ('CONFIG = Config(rollout=RolloutConfig(sampler="vllm"))', "it is Config(sampler=VLLMConfig())"),
        ("CONFIG = Config(rollout=RolloutConfig(batch_size=8))", "it is sampler.batch_size"),
        ('CONFIG = Config(run=RunConfig(task_options=("a=1",)))', "it is run.task_option"),
        ("from rlvr.config import ShadowConfig", "it is MonitorConfig"),
        ("from rlvr.train_command import script", "it is rlvr.commands.train"),
        ("from rlvr.runlog import RunLog", "No module named 'rlvr.runlog'"),
        ("from rlvr.checkpoint import damage", "it is rlvr.training.checkpoint.checkpoint"),
        ('CONFIG = Config(algo="rloo")', "algo is 'rloo'; expected AlgoConfig or"),
        ("CONFIG = Config(run=RunConfig(nonsense=1))", "unexpected keyword argument 'nonsense'"),
    ],
)
def test_an_earlier_recipe_is_told_what_to_write(source, words, tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(HEAD + source + TAIL)
    assert main(["train", str(path), "--dry-run"]) == 2
    printed = capsys.readouterr().err
    assert words in printed
    assert printed.count("\n") == 1

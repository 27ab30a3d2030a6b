"""Well-known models whose memory is planned without a network: their numbers of weights are the published ones."""

from __future__ import annotations

import pytest

from rlvr.commands.cli import main
from rlvr.model.memory.known_models import KNOWN, known_settings
from rlvr.model.memory.plan import shape_of_config

# In billions, as the hub counts the tensors of each (tied embeddings once).
WEIGHTS = {
    "Qwen/Qwen2.5-0.5B": 0.494,
    "Qwen/Qwen2.5-1.5B-Instruct": 1.544,
    "Qwen/Qwen2.5-3B": 3.086,
    "Qwen/Qwen2.5-7B": 7.616,
    "Qwen/Qwen2.5-14B": 14.770,
    "Qwen/Qwen2.5-32B": 32.764,
    "Qwen/Qwen2.5-72B": 72.706,
    "Qwen/Qwen3-0.6B": 0.596,
    "Qwen/Qwen3-4B": 4.022,
    "Qwen/Qwen3-8B": 8.191,
    "Qwen/Qwen3-32B": 32.762,
    "meta-llama/Llama-3.2-1B": 1.236,
    "meta-llama/Llama-3.2-3B": 3.213,
    "meta-llama/Llama-3.1-8B-Instruct": 8.030,
    "meta-llama/Llama-3.3-70B-Instruct": 70.554,
    "HuggingFaceTB/SmolLM2-135M": 0.1345,
    "HuggingFaceTB/SmolLM2-360M": 0.362,
    "HuggingFaceTB/SmolLM2-1.7B": 1.711,
    "google/gemma-2-2b": 2.614,
    "google/gemma-2-9b": 9.242,
    "google/gemma-2-27b": 27.227,
    "google/gemma-3-1b-it": 1.000,
    "mistralai/Mistral-7B-v0.1": 7.242,
    "mistralai/Mistral-7B-v0.3": 7.248,
    "microsoft/Phi-3-mini-4k-instruct": 3.821,
    "microsoft/phi-4": 14.660,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1.777,
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": 8.030,
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_known_models_have_their_published_number_of_weights(name: str) -> None:
    """To a thousandth."""
    assert shape_of_config(known_settings(name)).parameters / 1e9 == pytest.approx(WEIGHTS[name], rel=1e-3)


def test_all_of_them_have_a_shape() -> None:
    """Others have none here."""
    assert all(shape_of_config(known_settings(name)).parameters > 1e8 for name in KNOWN)
    assert known_settings("Qwen/Qwen2.5-7B-Mine") is None


def test_a_plan_needs_no_network(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of the model is asked for."""
    monkeypatch.setattr("rlvr.model.memory.plan.find_model", lambda *names: pytest.fail("the hub was asked"))
    flags = ["--model.name", "Qwen/Qwen2.5-0.5B-Instruct", "--gpus", "1", "--gib", "80"]
    assert main(["doctor", "--plan", "math_grpo", *flags]) == 0
    assert "0.49B weights" in capsys.readouterr().out

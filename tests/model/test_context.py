"""Prompts and the model's context: what does not fit is named or left out, before anything is trained or sampled."""

from __future__ import annotations

import random
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoConfig

from rlvr import Problem, Reply, Task
from rlvr.commands.cli import main
from rlvr.commands.task import collect_corpus
from rlvr.config import ModelConfig
from rlvr.launch import launch
from rlvr.model.load.policy import load_policy
from rlvr.model.load.tiny import tiny_tokenizer
from rlvr.model.text.context import context_limit, longer_than
from rlvr.model.text.rendering import Rendering
from tests.helpers.files import lines
from tests.helpers.runs import tiny
from tests.helpers.verifiers import has_seven

TEMPLATE = (
    "{{ 'system' }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[a]{% endif %}"
)


def task(**lengths: int) -> Task:
    """Problems of 3 tokens, and some of a given length; the last four are held out."""
    texts = {f"p{i:02}": f"{i:02}=" for i in range(12)} | {name: "1" * size for name, size in lengths.items()}
    problems = [Problem(name, text, "1") for name, text in sorted(texts.items())]
    return Task("sums", problems[:-4], problems[-4:], has_seven)


def model(tmp_path: Path, positions: int = 32) -> dict[str, object]:
    """A saved tiny model with a short context."""
    policy = load_policy(ModelConfig(device="cpu"), corpus=["0123456789="])
    policy.causal.config.max_position_embeddings = positions
    policy.save(tmp_path / "model")
    return {"name": str(tmp_path / "model")}


@pytest.mark.parametrize(("name", "where"), [("a-long", "train"), ("z-long", "held out")])
def test_a_prompt_beyond_the_context_is_named_before_the_first_step(tmp_path: Path, name: str, where: str) -> None:
    """30 tokens and 10 new ones in a context of 32: the problem, its tokens, the limit, what to do; nothing written."""
    config = tiny(tmp_path / "run", model=model(tmp_path))
    expected = (
        f"problem '{name}' has a prompt of 30 tokens; with 10 new ones that is more than the 32 .*1 of .*"
        "lower --rollout.max-new-tokens, or leave them out with --rollout.max-prompt-tokens 22"
    )
    with pytest.raises(ValueError, match=expected):
        launch(config, task=task(**{name: 30}))
    assert not (tmp_path / "run").exists()


def test_prompts_that_just_fit_are_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """22 tokens and 10 new ones fill a context of 32. A line says how long prompts are."""
    launch(tiny(tmp_path / "run", model=model(tmp_path), eval={"every": -1}), task=task(exact=22))
    assert "a typical prompt has 3 tokens (longest of 9: 22), a completion at most 10; the model reads 32" in (
        capsys.readouterr().out
    )


def test_long_prompts_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of training and of the held-out problems; none of them is ever sampled."""
    settings = {"max_prompt_tokens": 22, "problems_per_step": 8}
    config = tiny(tmp_path / "run", model=model(tmp_path), rollout=settings, eval={"num_problems": 128})
    held = task(**{"a-long": 23, "z-long": 40})
    evaluations = launch(config, task=held)
    printed = capsys.readouterr().out
    assert "prompts of more than 22 tokens are left out: 1 of 10 to train on, 1 of 4 held out" in printed
    assert evaluations[0]["num_problems"] == 3
    assert "a-long" not in {row["problem"] for row in lines(tmp_path / "run" / "rollouts.jsonl")}
    every = tiny(tmp_path / "none", model=model(tmp_path), rollout={"max_prompt_tokens": 2})
    with pytest.raises(ValueError, match="max-prompt-tokens 2: all 10 problems have longer prompts"):
        launch(every, task=held)


def test_demonstrations_beyond_the_context_are_named(tmp_path: Path) -> None:
    """Prompt, completion and end token."""
    held = replace(task(), demonstrations=[(Problem("d0", "1=", ""), "1" * 29), (Problem("d1", "1=", ""), "1" * 30)])
    config = tiny(tmp_path / "run", model=model(tmp_path), sft={"steps": 1})
    with pytest.raises(ValueError, match="demonstration 'd1' has 33 tokens and the model reads 32"):
        launch(config, task=held)


def test_evaluation_and_profile_say_so_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With their own flags; left out, the rest is evaluated."""
    rows = ['{"prompt": "1+1=", "reference": "2"}', '{"prompt": "%s", "reference": "2"}' % ("1+" * 15)]
    (tmp_path / "test.jsonl").write_text("\n".join(rows))
    data = ["--data", str(tmp_path), "--model", str(model(tmp_path)["name"]), "--device", "cpu"]
    evaluation = ["eval", "--task", "jsonl", *data, "--max-new-tokens", "4", "--out-dir", str(tmp_path / "eval")]
    assert main(evaluation) == 2
    error = capsys.readouterr().err
    assert "has a prompt of 30 tokens; with 4 new ones" in error
    assert "lower --max-new-tokens, or leave them out with --max-prompt-tokens 28" in error
    profile = ["profile", "jsonl", *data, "--split", "test", "--max-new-tokens", "4", "--samples", "2"]
    assert main([*profile, "--group-size", "2", "--out-dir", str(tmp_path / "profile")]) == 2
    assert "--max-prompt-tokens 28" in capsys.readouterr().err
    evaluation[-1] = str(tmp_path / "short")
    assert main([*evaluation, "--max-prompt-tokens", "28"]) == 0
    printed = capsys.readouterr().out
    assert "1 problems with prompts of more than 28 tokens are left out" in printed
    assert len((tmp_path / "short" / "answers.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize("chat", ["never", "always"])
def test_long_prompts_are_found_as_by_rendering_each(chat: str) -> None:
    """The bound that spares rendering leaves none out: texts of all lengths, other alphabets, several messages."""
    tokenizer = tiny_tokenizer(["system[user]assistant 0123456789äß中ﷺ"])
    tokenizer.chat_template = TEMPLATE
    rendering = Rendering(tokenizer, system_prompt="s12", chat=chat)
    stream = random.Random(0)
    problems = []
    for i in range(200):
        text = "".join(stream.choices("0123ä中ﷺ ", k=stream.randrange(1, 40)))
        prompt = [{"role": "user", "content": text}, {"role": "assistant", "content": text}] if i % 3 == 0 else text
        problems.append(Problem(str(i), prompt if chat == "always" else text))
    for limit in (1, 20, 40, 60, 100):
        expected = [(p, n) for p in problems if (n := len(rendering.render(p.prompt))) > limit]
        assert longer_than(rendering, problems, limit) == expected


def rope(kind: str, **options: float) -> dict[str, object]:
    return {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64, **options}


LLAMA3 = rope("llama3", low_freq_factor=1.0, high_freq_factor=4.0)


@pytest.mark.parametrize(
    ("family", "settings", "limit"),
    [
        ("llama", {"max_position_embeddings": 64}, 64),
        ("gpt2", {"n_positions": 48}, 48),
        ("qwen2", {"max_position_embeddings": 64, "rope_parameters": rope("yarn")}, 256),
        ("llama", {"max_position_embeddings": 256, "rope_parameters": LLAMA3}, 256),
        ("bloom", {}, None),
        ("mamba", {}, None),
    ],
)
def test_the_limit_of_a_config(family: str, settings: dict[str, object], limit: int | None) -> None:
    """Positions, stretched where the rope is and the config does not count it; none for models without positions."""
    assert context_limit(AutoConfig.for_model(family, **settings)) == limit


def test_lone_surrogate_in_a_prompt_is_one_line() -> None:
    """In text and in messages, by its escape; tokenizers raise a TypeError that names no text."""
    rendering = Rendering(tiny_tokenizer(["1+="]))
    for prompt in ("1+1=\udc00", [{"role": "user", "content": "\udc00"}]):
        with pytest.raises(ValueError, match=r"^the prompt: not text in UTF-8: it holds the lone surrogate \\udc00$"):
            rendering.render(prompt)


def test_characters_without_a_token_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model of the characters 0-9 and = starts on prompts with x and y: a warning at the start names them."""
    problems = [Problem(f"p{i}", f"x{i:02}={'y' * (i % 2)}", "1") for i in range(12)]
    config = tiny(tmp_path / "run", model=model(tmp_path), eval={"every": -1})
    launch(config, task=Task("letters", problems[:-4], problems[-4:], has_seven))
    expected = "WARNING the tokenizer has no token for 'x', 'y' of the prompts: the model reads <unk> there"
    assert expected in " ".join(capsys.readouterr().out.split())


def test_a_reply_without_tokens_warns_once() -> None:
    """The environment says <, which the tokenizer lacks; a second such reply is silent."""
    rendering = Rendering(tiny_tokenizer(["0123456789="]))
    with pytest.warns(RuntimeWarning, match="no token for '<' of the environment's replies"):
        rendering.encode_reply(Reply("<7"), ended=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rendering.encode_reply(Reply("<7"), ended=None) == rendering.encode_reply(Reply(">7"), ended=None)


def test_the_tiny_model_has_the_characters_of_training_prompts_and_references() -> None:
    """References count only without demonstrations, which show what the model writes."""
    train, test = [Problem("1", "ab", "cd")], [Problem("2", "ef", 1.5)]
    plain = Task("letters", train, test, has_seven)
    assert set("".join(collect_corpus(plain))) == set("abcdef1.5")
    assert set("".join(collect_corpus(replace(plain, demonstrations=((Problem("3", "g", ""), "h"),))))) == set("abefgh")

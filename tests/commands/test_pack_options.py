"""Options without a name beside them belong to the pack's own verifier, and its own environment."""

from __future__ import annotations

import dataclasses
import functools
import json

import pytest

import rlvr.recipes.math_grpo
from rlvr.commands.cli import main
from rlvr.commands.eval import EvalArgs, load_task
from rlvr.commands.rm.launch import make_sampled_pack
from rlvr.commands.task import build_task
from rlvr.commands.train import recipe_config
from rlvr.config import Config, RunConfig
from rlvr.config.reward_model import PairsConfig
from rlvr.core.registry import VERIFIERS, make_task, make_verifier, with_options


def run(**settings) -> Config:
    return Config(run=RunConfig(**settings))


def test_the_printed_example_is_accepted(rlvr_data, capsys):
    """`--run.verifier-option extract=strict` without a verifier: only that option of GSM8K's changes."""
    flags = ["--run.task-option", "num_train=10", "num_test=5", "--run.verifier-option", "extract=strict"]
    flags += ["--run.data", str(rlvr_data("gsm8k/test.jsonl").parent)]
    config = recipe_config(rlvr.recipes.math_grpo, flags, "rlvr train math_grpo")
    config.check()
    own = build_task(dataclasses.replace(config, run=dataclasses.replace(config.run, verifier_option=()))).verifier
    assert build_task(config).verifier == dataclasses.replace(own, extract="strict") != own
    assert main(["show-prompt", "tiny_math", "--run.verifier-option", "extract=strict"]) == 0
    assert "math" in capsys.readouterr().out


def test_other_commands_take_them_too():
    """`rlvr eval` and `rlvr rm`, whose settings are the same."""
    task = load_task(EvalArgs(model="tiny", task="arithmetic", verifier_option=("extract=strict",)))
    assert task.verifier.extract == "strict"
    _, verifier = make_sampled_pack(PairsConfig(task="arithmetic", verifier_option=("extract=strict",), policy="tiny"))
    assert verifier.extract == "strict"


def test_in_a_mixture_each_pack_that_has_the_option_gets_it():
    """One that no pack's verifier has is refused."""
    packs = ("packs=arithmetic,countdown", "options=arithmetic.num_train=20,countdown.num_train=20")
    task = build_task(run(task="mixture", task_option=packs, verifier_option=("extract=strict", "use=at_most_once")))
    parts = task.verifier.components
    assert parts["arithmetic"].extract == "strict"
    assert parts["countdown"].use == "at_most_once"
    with pytest.raises(LookupError, match="none of the verifiers of the mixture's packs has an option 'slots'"):
        build_task(run(task="mixture", task_option=packs, verifier_option=("slots=1",)))


def test_those_of_a_verifier_that_is_no_dataclass():
    """The code packs' runs programs in the sandbox; what it was made with stays, but for the option."""
    task = build_task(run(task="tiny_code", verifier_option=("timeout=3",)))
    assert task.verifier.limits.seconds == 3
    first = make_verifier("unit_tests", partial=True, memory_mb=512)
    again = with_options(first, {"timeout": "4"}, "it")
    assert (again.partial, again.limits.memory_mb, again.limits.seconds) == (True, 512, 4)
    assert with_options(again, {"memory-mb": "256"}, "it").limits.seconds == 4


class Bare:
    """A user's class, made without its name."""

    def __init__(self, *, least: int = 3) -> None:
        self.least = least

    def __call__(self, problem, completion) -> bool:
        return len(completion) >= self.least


def check_shouting(problem, completion, *, marks: int = 1, tone: str = "loud") -> bool:
    return completion.endswith("!" * marks)


def test_those_of_a_users_function_or_class():
    """A function is bound to them, one that is bound already keeps the others; an instance must have been named."""
    bound = with_options(check_shouting, {"marks": "2"}, "it")
    assert not bound(None, "hey!")
    assert with_options(functools.partial(check_shouting, tone="soft"), {"marks": "2"}, "it").keywords == {
        "tone": "soft",
        "marks": 2,
    }
    with pytest.raises(ValueError, match="it, option marks: 'two'; expected a whole number"):
        with_options(check_shouting, {"marks": "two"}, "it")
    with pytest.raises(LookupError, match=r"has no option 'mark'; did you mean marks\?"):
        with_options(check_shouting, {"mark": "2"}, "it")
    with pytest.raises(LookupError, match="was not made by its name"):
        with_options(Bare(), {"least": "2"}, "it")
    assert with_options(make_verifier(f"{__name__}:Bare"), {"least": "5"}, "it").least == 5
    with pytest.raises(LookupError, match="it has no options; name another one"):
        with_options(lambda problem, completion: True, {"a": "1"}, "it")


@pytest.mark.parametrize("name", [name for name in VERIFIERS.names() if name not in ("reward_model", "llm_judge")])
def test_a_verifier_made_anew_has_the_options_that_it_had(name):
    """For each of the registered verifiers that can be made without options: one more change changes nothing else."""
    try:
        made = make_verifier(name)
    except (ValueError, LookupError):
        pytest.skip("needs options")
    flags = [option for option, p in VERIFIERS.options(name).items() if isinstance(p.default, bool)]
    for option in flags:
        default = VERIFIERS.options(name)[option].default
        try:
            changed = with_options(made, {option: str(not default)}, "it")
        except ValueError:
            continue  # an option that needs another one
        assert getattr(changed, option, not default) is (not default)
        back = with_options(changed, {option: str(default)}, "it")
        assert vars(back).keys() == vars(made).keys()
        if dataclasses.is_dataclass(made):
            assert back == made


def test_an_environments_options_belong_to_the_packs_own():
    """higher_lower plays with five tries or as many as are asked for."""
    own = make_task("higher_lower").environment.keywords
    task = build_task(run(task="higher_lower", environment_option=("tries=3",)))
    assert task.environment.keywords == {**own, "tries": 3}
    with pytest.raises(ValueError, match=r"task 'arithmetic' has no environment; set --run\.environment too"):
        build_task(run(task="arithmetic", environment_option=("tries=3",)))


def test_a_run_is_not_resumed_with_other_options(tmp_path):
    """What judges is a setting of the run: it is compared with what the folder holds."""
    import json

    from rlvr.config import to_json
    from rlvr.training.checkpoint.resume import current_versions, find_difference

    records = [
        {**json.loads(to_json(run(verifier_option=options))), "fingerprint": "", **current_versions()}
        for options in ((), ("extract=strict",))
    ]
    assert "run.verifier_option" in (find_difference(*records) or "")


def test_the_named_verifier_reads_the_references_of_a_file(tmp_path, capsys):
    """Objects as references, which the file's default verifier, math, refuses; `rlvr audit` takes the same names."""
    data = tmp_path / "words.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"p{i}", "reference": {"words": i}}) + "\n" for i in range(20)))
    with pytest.raises(ValueError, match="the reference is an object"):
        build_task(run(task="jsonl", data=data))
    task = build_task(run(task="jsonl", data=data, verifier="length", verifier_option=("min=3",)))
    assert task.verifier.min == 3
    assert main(["audit", "jsonl", "--data", str(data), "--verifier", "length"]) == 1
    assert "FAIL  empty completions accepted: 20 of 20" in capsys.readouterr().out


def test_parts_with_commas_reach_a_file_s_verifier(tmp_path):
    """An option whose value has commas, as those of `combine`."""
    data = tmp_path / "sums.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{i}+1=", "reference": i + 1}) + "\n" for i in range(20)))
    task = build_task(run(task="jsonl", data=data, verifier="combine", verifier_option=("parts=math,format:0.5",)))
    assert task.verifier.weights == {"math": 1.0, "format": 0.5}

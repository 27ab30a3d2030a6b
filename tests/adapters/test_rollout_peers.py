"""Programs that play rollouts or load a file: SkyRL, verl, OpenRLHF, tinker, environments in TRL (`.ci/adapters`)."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlvr.adapters import Judge, Unscored, judge
from rlvr.core.registry import make_verifier
from rlvr.core.types import Problem, Reply, bad_reference, correct
from tests.helpers.peers import answered, needs

# What the programs warn of is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")


def higher(problem, rng):
    """A game of two turns."""
    said = yield
    while said != str(problem.reference):
        said = yield Reply("higher", role="tool", reward=-0.25)
    return correct(said)


CHAT = Problem("c", [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1="}], "2")


def game() -> Judge:
    return Judge(make_verifier("exact"), [Problem("p", "Guess.", 7), Problem("q", "Guess.", 9)], environment=higher)


@needs("skyrl-gym")
def test_skyrl_plays_one_turn():
    """A reward at once; without a score an error, not 0."""
    from rlvr.adapters.skyrl import environment

    pack = judge(task="arithmetic", num_train=1, num_test=2)
    problem = pack.part("test")[0]
    world = environment(pack)(extras={"reward_spec": {"ground_truth": problem.id}})
    prompt = [{"role": "user", "content": problem.prompt}]
    assert world.init(prompt)[0] == prompt
    ended = world.step(answered(problem))
    assert (ended["reward"], ended["done"], ended["observations"]) == (1.0, True, [])
    assert ended["metadata"]["status"] == "correct"
    by_reference = environment(judge("math"))(extras={"reward_spec": {"ground_truth": None}})
    with pytest.raises(Unscored, match="bad_reference"):
        by_reference.step("\\boxed{4}")


@needs("skyrl-gym")
def test_skyrl_plays_several_turns():
    """Replies are observations of the user with their rewards; the verdict is the last reward."""
    from rlvr.adapters.skyrl import environment

    world = environment(game())(extras={"problem": "p"})
    first = world.step("3")
    assert (first["done"], first["reward"]) == (False, -0.25)
    assert first["observations"] == [{"role": "user", "content": "higher"}]
    last = world.step("7")
    assert (last["done"], last["reward"], last["metadata"]["extracted"]) == (True, 1.0, "7")
    world.close()


@needs("skyrl-gym")
@pytest.mark.parametrize("most, rewards", [(1, [-0.25]), (2, [-0.25, -0.25]), (3, [-0.25, -0.25, 1.0])])
def test_skyrl_limits_turns(most, rewards):
    """The last turn that `max_turns` allows ends the rollout: SkyRL asks until the environment says so."""
    from rlvr.adapters.skyrl import environment

    world = environment(game())(extras={"problem": "p", "max_turns": most})
    found = [world.step(text) for text in ("3", "5", "7")[:most]]
    assert [step["reward"] for step in found] == rewards
    assert [step["done"] for step in found] == [False] * (most - 1) + [True]


@needs("skyrl-gym")
def test_skyrl_names_what_a_row_lacks():
    """And the prompt reaches a verifier that reads it."""
    from rlvr.adapters.skyrl import environment

    for pack, extras in ((game(), {}), (judge("math"), {"reward_spec": None}), (judge("math"), {"problem": None})):
        with pytest.raises(LookupError, match=r"no 'problem'.* no reward_spec.ground_truth"):
            environment(pack)(extras=extras)
    seen = Judge(lambda problem, completion: problem.prompt == [{"role": "user", "content": completion}])
    world = environment(seen)(extras={"reward_spec": {"ground_truth": "4"}})
    world.init([{"role": "user", "content": "2+2?"}])
    assert world.step("2+2?")["reward"] == 1.0


@needs("skyrl-gym")
def test_skyrl_makes_a_registered_pack():
    """By its own registry."""
    import skyrl_gym

    from rlvr.adapters.skyrl import environment

    pack = judge(task="arithmetic", num_train=1, num_test=2)
    skyrl_gym.register(id="rlvr_sums", entry_point=environment(pack))
    problem = pack.part("train")[0]
    world = skyrl_gym.make("rlvr_sums", extras={"problem": problem.id})
    assert world.step(answered(problem))["reward"] == 1.0


@needs("verl")
def test_verl_loads_a_reward_file(tmp_path):
    """As custom_reward_function.path names it, and its reward manager for a row of ours."""
    pytest.importorskip("tensordict")
    from omegaconf import OmegaConf
    from verl.trainer.ppo.reward import get_custom_reward_fn

    from rlvr.adapters.verl import rows

    (tmp_path / "reward.py").write_text(
        "from rlvr.adapters import judge\n"
        "from rlvr.adapters.verl import compute_score as of\n"
        "pack = judge(task='arithmetic', num_train=1, num_test=2)\n"
        "compute_score = of(pack)\n"
    )
    named = {"path": str(tmp_path / "reward.py"), "name": "compute_score"}
    score = get_custom_reward_fn(OmegaConf.create({"reward": {"custom_reward_function": named}}))
    with judge(task="arithmetic", num_train=1, num_test=2) as pack:
        row, problem = rows(pack, "sums", "test")[1], pack.part("test")[1]
    asked = {
        "data_source": row["data_source"],
        "ground_truth": row["reward_model"]["ground_truth"],
        "extra_info": {**row["extra_info"], "num_turns": None, "rollout_reward_scores": {}},
    }
    assert score(solution_str=answered(problem), **asked)["score"] == 1.0
    assert score(solution_str="?", **asked)["acc"] == 0.0


@needs("openrlhf")
def test_openrlhf_calls_a_reward_file(tmp_path):
    """Its executor loads the file and asks for the reward of a query; what fails leaves no reward there."""
    pytest.importorskip("pylatexenc")
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    (tmp_path / "reward.py").write_text(
        "from rlvr.adapters import judge\n"
        "from rlvr.adapters.openrlhf import reward_func as of\n"
        "reward_func = of(judge('math'), ends=['<|im_end|>'])\n"
    )
    executor = SingleTurnAgentExecutor(str(tmp_path / "reward.py"))
    fetch = executor._fetch_rewards_via_func
    (right,) = asyncio.run(fetch(["2+2? \\boxed{4}<|im_end|>"], ["2+2? "], ["4"]))
    assert right["rewards"].tolist() == [1.0]
    with pytest.raises(Unscored, match="bad_reference"):
        asyncio.run(fetch(["2+2? \\boxed{4}"], ["2+2? "], [None]))


@needs("openrlhf")
def test_openrlhf_plays_several_turns():
    """Its executor: replies in their template are read by the model, not trained on; rewards of turns are added."""
    pytest.importorskip("pylatexenc")
    from openrlhf.utils.agent import MultiTurnAgentExecutor

    from rlvr.adapters.openrlhf import agent

    said = iter(["3<end>", "7<end>"])
    read = []

    class Engine:
        async def generate(self, tokens, sampling_params, multi_modal_data=None):
            text = next(said)
            read.append("".join(map(chr, tokens)))
            ids = [ord(c) for c in text]
            return SimpleNamespace(
                outputs=[SimpleNamespace(token_ids=ids, text=text, finish_reason="stop", logprobs=None)]
            )

    class Letters:
        def __call__(self, text, **unused):
            import torch

            return {"input_ids": torch.tensor([[ord(c) for c in text]])}

    executor = MultiTurnAgentExecutor(agent(game(), reply="\n[{text}]\n", ends=["<end>"]))
    options = SimpleNamespace(max_tokens=20, logprobs=None)
    found = asyncio.run(executor.execute("Guess. ", "p", options, 200, Letters(), Engine()))
    assert read == ["Guess. ", "Guess. 3<end>\n[higher]\n"]
    assert found["reward"] == 0.75
    assert float(found["extra_logs"]["correct"]) == 1.0
    assert [tuple(pair) for pair in found["action_ranges"]] == [(7, 13), (23, 29)]


@needs("openrlhf")
def test_an_openrlhf_agent_has_no_score_for_what_fails():
    from rlvr.adapters.openrlhf import agent

    # Each step has the logs of the last one: a batch in which some rollouts lack them cannot be split.
    started = agent(game())()
    asyncio.run(started.reset({"observation": "Guess.", "label": "p"}))
    assert float(asyncio.run(started.step({"action_text": "3"}))["extra_logs"]["correct"]) == 0.0
    made = agent(judge("math"))()
    asyncio.run(made.reset({"observation": "2+2?", "label": None}))
    with pytest.raises(Unscored, match="bad_reference"):
        asyncio.run(made.step({"action_text": "4"}))
    with pytest.raises(ValueError, match=r"expected \{text\} in it"):
        agent(judge("math"), reply="no place")
    for ends in (["<end>"], ["", "<end>"], ["</s>", "<end>"]):
        with pytest.raises(ValueError, match="what follows the end of a turn"):
            agent(judge("math"), reply="<end>\n{text}", ends=ends)


@needs("tinker-cookbook")
def test_tinker_steps_a_problem():
    """Its own step, with a renderer that reads characters: score, format and reference are ours."""
    from rlvr.adapters.tinker import group_builders, problem_env

    class Renderer:
        def get_stop_sequences(self):
            return ["\n"]

        def build_generation_prompt(self, messages):
            return [message["content"] for message in messages]

        def parse_response(self, action):
            ended = SimpleNamespace(is_stop_sequence=action[-1] == 10, is_clean=True)
            return {"role": "assistant", "content": "".join(map(chr, action)).rstrip()}, ended

    pack = judge(task="arithmetic", num_train=3, num_test=2)
    builders = group_builders(pack, Renderer(), group_size=2)
    assert len(builders) == 3
    worlds = asyncio.run(builders[1].make_envs())
    problem = pack.part("train")[1]
    assert asyncio.run(worlds[0].initial_observation()) == ([problem.prompt], ["\n"])
    right = asyncio.run(worlds[0].step([ord(c) for c in answered(problem) + "\n"]))
    assert (right.reward, right.metrics) == (1.0, {"format": 1.0, "correct": 1.0})
    wrong = asyncio.run(worlds[1].step([ord(c) for c in "?"]))
    assert wrong.reward == pytest.approx(-0.1)
    assert worlds[0].get_reference_answer() == f"of problem {problem.id}"
    made = problem_env(judge("exact"))(Renderer(), CHAT)
    assert asyncio.run(made.initial_observation())[0] == ["Be brief.", "1+1="]
    broken = Judge(lambda problem, completion: bad_reference("no service"))
    with pytest.raises(Unscored, match="no service"):
        problem_env(broken)(Renderer(), CHAT).check_answer("2")
    with pytest.raises(ValueError, match="has an environment"):
        problem_env(game())


@needs("tinker-cookbook")
def test_tinker_judges_thinking_and_sends_groups():
    """Thinking that the renderer took off is judged; builders go to other processes with their one problem."""
    from rlvr.adapters.tinker import group_builders, problem_env

    ended = SimpleNamespace(is_stop_sequence=True, is_clean=True)
    parts = [{"type": "thinking", "thinking": "2 and 2"}, {"type": "text", "text": "<answer>4</answer>"}]
    renderer = SimpleNamespace(
        get_stop_sequences=list,
        build_generation_prompt=list,
        parse_response=lambda action: ({"role": "assistant", "content": parts}, ended),
    )
    world = problem_env(judge("format"))(renderer, Problem("p", "2+2?", "4"))
    assert asyncio.run(world.step([1])).reward == 1.0
    assert world.check_answer("<answer>4</answer>") == 0.0
    for problem, given, reason in (
        (Problem("p", [{"role": "assistant", "content": "4"}], "4"), None, "ends with assistant; expected user"),
        (CHAT, [{"role": "system", "content": "Be long."}], "has a system prompt, and so has convo_prefix"),
    ):
        with pytest.raises(ValueError, match=reason):
            problem_env(judge("exact"))(renderer, problem, convo_prefix=given)
    shown = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    made = problem_env(judge("exact"))(renderer, CHAT, convo_prefix=shown)
    asked = asyncio.run(made.initial_observation())[0]
    assert [message["role"] for message in asked] == ["system", "user", "assistant", "user"]
    pack = judge(task="arithmetic", num_train=300, num_test=2)
    builders = group_builders(pack, None, group_size=2)
    sent = pickle.dumps(builders[7])
    assert len(sent) < len(pickle.dumps(pack)) / 10
    worlds = asyncio.run(pickle.loads(sent).make_envs())
    problem = pack.part("train")[7]
    assert [one.check_answer(answered(problem)) for one in worlds] == [1.0, 1.0]
    with pytest.raises(ValueError, match="group_size 0: expected at least 1"):
        group_builders(pack, None, group_size=0)


def test_an_environment_of_trl_is_played_by_calls():
    """What TRL looks for in the class: `reset`, `get_reward`, and a tool with a schema."""
    from transformers.utils import get_json_schema

    from rlvr.adapters.trl import environment

    made = environment(game())
    public = {name for name, _ in inspect.getmembers(made, inspect.isfunction) if not name.startswith("_")}
    assert public == {"reset", "get_reward", "act"}
    world = made()
    schema = get_json_schema(world.act)["function"]
    assert schema["parameters"]["properties"]["text"]["type"] == "string"
    assert world.reset(prompt="Guess.", problem="p") is None
    assert world.act("3") == "higher"
    assert world.get_reward() == -0.25  # the verifier judges what was said last
    assert world.act("7") == "The episode has ended."
    assert world.get_reward() == 0.75
    assert world.act("7") == "The episode has ended."
    world.reset(prompt="Guess.", problem="q")
    assert world.get_reward() == 0.0
    with pytest.raises(LookupError, match="no problem 'z'"):
        world.reset(problem="z")
    with pytest.raises(ValueError, match="has no environment"):
        environment(judge("exact"))


@needs("trl")
def test_trl_trains_in_an_environment(tmp_path):
    """Two steps of GRPOTrainer, whose model calls the tool by chance: rewards come from the environment."""
    import trl
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from rlvr.adapters.trl import environment, rows
    from rlvr.model.load.tiny import tiny_model, tiny_tokenizer

    pack = game()
    template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    tokenizer = tiny_tokenizer([template, "<tool_call></tool_call>"])
    tokenizer.chat_template, tokenizer.padding_side = template, "left"
    config = GRPOConfig(
        output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=4, num_generations=4, use_cpu=True,
        max_completion_length=8, learning_rate=1e-2, report_to=[], save_strategy="no", logging_steps=1, bf16=False,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=tiny_model(tokenizer, 0),
        environment_factory=environment(pack),
        args=config,
        train_dataset=Dataset.from_list(rows(pack, "train")),
        processing_class=tokenizer,
    )
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "rewards/PackEnvironment/mean" in entry]
    assert trainer.state.global_step == 2
    assert [entry["rewards/PackEnvironment/mean"] for entry in logged] == [0.0, 0.0]
    pack.close()

"""Adapters against the programs themselves; a test skips where its program is not installed (`bash .ci/adapters`)."""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import math
import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlvr.adapters import Judge, Unscored, judge
from rlvr.core.registry import make_task, make_verifier
from rlvr.core.types import Problem, Reply, Status, bad_reference, correct, incorrect
from rlvr.verifiers import Runner
from tests.helpers.files import read_program


def needs(package: str) -> pytest.MarkDecorator:
    """Skip without the package. Asked of its metadata: a folder of this repository is named `verifiers`, too."""
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return pytest.mark.skip(reason=f"{package} is not installed")
    return pytest.mark.skipif(False, reason="")


def box_reference(problem) -> str:
    """Return a right answer to a problem of sums."""
    return f"\\boxed{{{problem.reference}}}"


# What the programs warn of is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")


def sometimes_broken(problem, completion):
    """A verifier that fails for some completions."""
    return bad_reference("no service") if "broken" in completion else correct() if "4" in completion else incorrect()


@needs("trl")
def test_trl_trains_five_steps(tmp_path):
    """GRPOTrainer on a CPU, with rewards of ours; those without score are left out of its means."""
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from rlvr.adapters.trl import reward, rows
    from rlvr.model.load.tiny import tiny_model, tiny_tokenizer

    pack = judge(task="arithmetic", num_train=8, num_test=2)
    data = rows(pack, "train")
    tokenizer = tiny_tokenizer([row["prompt"] for row in data])
    tokenizer.padding_side = "left"
    model = tiny_model(tokenizer, 0)
    before = {name: value.clone() for name, value in model.named_parameters()}
    seen = []

    def counting(prompts, completions, **columns):
        """Length as a reward, so that there is a gradient; each fourth sample has no score."""
        seen.extend(columns["problem"])
        return [None if i % 4 == 3 else len(text) / 10 for i, text in enumerate(completions)]

    config = GRPOConfig(
        output_dir=str(tmp_path), max_steps=5, per_device_train_batch_size=4, num_generations=4, use_cpu=True,
        max_completion_length=8, learning_rate=1e-2, report_to=[], save_strategy="no", logging_steps=1, bf16=False,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[reward(pack), counting],
        args=config,
        train_dataset=Dataset.from_list(data),
        processing_class=tokenizer,
    )
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "rewards/rlvr/mean" in entry]
    assert trainer.state.global_step == 5
    assert len(logged) == 5
    assert all(0 <= entry["rewards/rlvr/mean"] <= 1 for entry in logged)
    assert set(seen) <= {row["problem"] for row in data}
    assert any(not torch.equal(before[name], value) for name, value in model.named_parameters())
    pack.close()


@needs("inspect_ai")
def test_inspect_runs_a_pack(tmp_path):
    """With its mock model: scores, answers and reasons are a verdict's, and references stay out of the log."""
    from inspect_ai import eval as run
    from inspect_ai.model import ModelOutput, get_model

    from rlvr.adapters.inspect_ai import pack_task

    made = pack_task("arithmetic", num_train=1, num_test=4)
    problems = make_task("arithmetic", num_train=1, num_test=4).test
    right = {problem.prompt: box_reference(problem) for problem in problems[:3]}

    def reply(messages, *rest):
        output = ModelOutput.from_content("mockllm/model", right.get(messages[-1].text, "?"))
        output.usage = _usage()
        return output

    (log,) = run(made, model=get_model("mockllm/model", custom_outputs=reply), log_dir=str(tmp_path), display="none")
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["mean"].value == 0.75
    scores = {sample.id: sample.scores["rlvr"] for sample in log.samples}
    assert [scores[problem.id].value for problem in problems] == [1, 1, 1, 0]
    assert scores[problems[0].id].answer == problems[0].reference


def _usage():
    from inspect_ai.model import ModelUsage

    return ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)


@needs("inspect_ai")
def test_inspect_leaves_out_what_has_no_score(tmp_path):
    """Score.unscored: kept with its reason, and in no mean. Here the target is the reference."""
    from inspect_ai import Task
    from inspect_ai import eval as run
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ModelOutput, get_model
    from inspect_ai.solver import generate

    from rlvr.adapters.inspect_ai import scorer

    def reply(messages, *rest):
        output = ModelOutput.from_content("mockllm/model", messages[-1].text)
        output.usage = _usage()
        return output

    texts = ("4", "broken", "5")
    data = MemoryDataset([Sample(input=text, target="4", id=text) for text in texts])
    made = Task(dataset=data, solver=generate(), scorer=scorer(Judge(sometimes_broken)))
    (log,) = run(made, model=get_model("mockllm/model", custom_outputs=reply), log_dir=str(tmp_path), display="none")
    scores = {sample.id: sample.scores["rlvr"] for sample in log.samples}
    assert math.isnan(scores["broken"].value)
    assert "no service" in scores["broken"].explanation
    assert log.results.scores[0].metrics["mean"].value == 0.5


@needs("inspect_ai")
def test_inspect_passes_thinking_and_targets(tmp_path):
    """Thinking that was cut off is judged too; of several targets the best counts; metadata are ids only of a pack."""
    from inspect_ai import Task
    from inspect_ai import eval as run
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ChatMessageAssistant, ContentReasoning, ContentText, ModelOutput, get_model
    from inspect_ai.solver import generate

    from rlvr.adapters.inspect_ai import scorer

    def reply(messages, *rest):
        parts = [ContentReasoning(reasoning="2 and 2"), ContentText(text="<answer>4</answer>")]
        output = ModelOutput.from_message(ChatMessageAssistant(content=parts))
        output.usage = _usage()
        return output

    targets = {"one": "4", "second": ["5", "4"], "neither": ["5", "45"], "unread": ["5", ""]}
    data = MemoryDataset(
        [Sample(input="?", target=target, id=name, metadata={"problem": "2+2?"}) for name, target in targets.items()]
    )
    both = judge("combine", parts=("math",), gates=("format",))
    made = Task(dataset=data, solver=generate(), scorer=scorer(both))
    (log,) = run(made, model=get_model("mockllm/model", custom_outputs=reply), log_dir=str(tmp_path), display="none")
    assert log.status == "success", log.error
    scores = {sample.id: sample.scores["rlvr"].value for sample in log.samples}
    assert (scores["one"], scores["second"], scores["neither"]) == (1, 1, 0)
    assert math.isnan(scores["unread"])
    whitened = judge("combine", parts=("math",), whiten=("math",))
    with pytest.raises(ValueError, match="inspect_ai asks for one verdict at a time"):
        scorer(whitened)


@needs("lm_eval")
def test_lm_eval_runs_a_pack():
    """With a model of its own: means over repeats and problems."""
    import lm_eval
    from lm_eval.api.model import LM

    from rlvr.adapters.lm_eval import mean_of_scored, pack_task

    problems = make_task("arithmetic", num_train=1, num_test=4).test
    right = {problem.prompt.strip(): box_reference(problem) for problem in problems[:2]}

    class Mock(LM):
        def __init__(self):
            super().__init__()
            self.asked = 0

        def generate_until(self, requests, disable_tqdm=False):
            replies = []
            for request in requests:
                self.asked += 1
                text = right.get(request.args[0].strip(), "?")
                replies.append(text if self.asked % 2 else "\\boxed{none}")
            return replies

        def loglikelihood(self, requests):
            raise NotImplementedError

        def loglikelihood_rolling(self, requests):
            raise NotImplementedError

    with pytest.raises(ValueError, match="repeats 0: expected at least 1"):
        pack_task("arithmetic", repeats=0)
    made = pack_task("arithmetic", num_train=1, num_test=4, repeats=2)
    # Examples would show the ids of problems as answers: what is asked for is left out.
    found = lm_eval.simple_evaluate(model=Mock(), tasks=[made], bootstrap_iters=0, num_fewshot=2)
    results = next(iter(found["results"].values()))
    assert results["score,all"] == results["acc,all"] == 0.25
    assert results["unscored,all"] == 0.0
    assert mean_of_scored([1.0, math.nan, 0.0]) == 0.5  # no number of a mean
    assert math.isnan(mean_of_scored([math.nan]))


def _completions(found):
    """The completions of each problem, of an evaluation by lm_eval."""
    (samples,) = found["samples"].values()
    return [sample["resps"][0] for sample in samples]


@needs("lm_eval")
def test_lm_eval_samples_repeats_over_an_api():
    """A server that honours seeds gives one answer per seed: lm_eval's own seed is the same for all requests."""
    import random

    import lm_eval

    from rlvr.adapters.lm_eval import pack_task
    from tests.helpers.openai_like import chat_answer, openai_like

    def answer(body):
        seed = None if body["temperature"] and body.get("seed") is None else body.get("seed", 0) * body["temperature"]
        return chat_answer(str(random.Random(seed).random()))

    def evaluate(repeats, **generation):
        made = pack_task("arithmetic", num_train=1, num_test=2, repeats=repeats, generation=generation)
        return _completions(
            lm_eval.simple_evaluate(
                model="local-chat-completions",
                model_args={"model": "m", "base_url": f"{server.url}/chat/completions", "num_concurrent": 2},
                tasks=[made],
                apply_chat_template=True,
                bootstrap_iters=0,
            )
        )

    with openai_like(answer) as server:
        assert [len(set(texts)) for texts in evaluate(4)] == [4, 4]
        assert {body["temperature"] for body in server.bodies} == {1.0}
        evaluate(4, temperature=0.6)
        assert server.bodies[-1]["temperature"] == 0.6
        assert evaluate(1) == evaluate(1)
        assert server.bodies[-1]["temperature"] == 0.0


@needs("lm_eval")
@pytest.mark.parametrize("greedy", [{"temperature": 0}, {"temperature": 0.0, "do_sample": True}, {"do_sample": False}])
def test_lm_eval_repeats_are_not_greedy(greedy):
    """Several equal completions are no sample."""
    from rlvr.adapters.lm_eval import pack_task

    with pytest.raises(ValueError, match="4 equal completions"):
        pack_task("arithmetic", num_train=1, num_test=2, repeats=4, generation=greedy)


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
    ended = world.step(box_reference(problem))
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
    assert world.step(box_reference(problem))["reward"] == 1.0


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
    assert score(solution_str=box_reference(problem), **asked)["score"] == 1.0
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
    right = asyncio.run(worlds[0].step([ord(c) for c in box_reference(problem) + "\n"]))
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
    assert [one.check_answer(box_reference(problem)) for one in worlds] == [1.0, 1.0]
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


TOYS = read_program("taskset_toys")


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A folder whose modules can be imported, here and in worker processes."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@needs("verifiers")
def test_a_taskset_is_a_pack(modules):
    """Its tasks are problems, with the system prompt; its weighted rewards are scores; one that fails gives none."""
    (modules / "toy_sums.py").write_text(TOYS)
    task = make_task("verifiers:toy_sums", config='{"count": 20}', full=1.5, test_share=0.3)
    problems = {problem.id: problem for problem in [*task.train, *task.test]}
    assert len(problems) == 20
    assert task.train
    assert task.test
    problem = problems["verifiers:toy_sums/7"]
    assert problem.prompt == [{"role": "system", "content": "Be short."}, {"role": "user", "content": "7+7?"}]
    with Runner(task.verifier, workers=1, timeout=60) as runner:
        texts = ("14", "15", "a very long answer", "broken")
        right, short, wrong, failed = runner.verify([(problem, text) for text in texts])
    assert (right.status, right.score) == (Status.CORRECT, 1.0)
    assert (short.status, short.score) == (Status.PARTIAL, pytest.approx(1 / 3))
    assert (wrong.status, wrong.score) == (Status.INCORRECT, 0.0)
    assert (failed.status, failed.score) == (Status.ERROR, None)
    assert "no service" in failed.reason


@needs("verifiers")
@pytest.mark.parametrize(
    "old, new, reason",
    [
        ("class Toy(vf.Task[Data]):", "class Toy(vf.Task[Data]):\n    NEEDS_CONTAINER = True", "a container"),
        ("async def right(self, trace)", "async def right(self, trace, runtime)", "a runtime for its reward right"),
        ('prompt=f"{i}+{i}?", ', "", "without a prompt"),
        ("count: int = 40", "count: int = 0", "has no tasks"),
        (
            "class Toy(vf.Task[Data]):",
            "class Toy(vf.Task[Data]):\n    async def setup(self, trace, runtime):\n        trace.info['x'] = 1\n",
            "a runtime for its setup",
        ),
        (
            "            yield Toy(",
            "            odd = type('Odd', (Toy,), {'NEEDS_CONTAINER': i == 30})\n            yield odd(",
            "needs a container",
        ),
    ],
)
def test_tasksets_that_need_more_are_refused(modules, old, new, reason):
    """With the reason."""
    assert old in TOYS
    name = f"toy_{abs(hash(reason))}"
    (modules / f"{name}.py").write_text(TOYS.replace(old, new))
    with pytest.raises(ValueError, match=reason):
        make_task(f"verifiers:{name}")


@needs("verifiers")
@pytest.mark.parametrize(
    "said, rewards",
    [
        ("14", (1.0, 1.0)),
        ("<think>\n7 and 7, so 15? No.\n</think>\n\n14", (1.0, 1.0)),
        ("7 and 7\n</think>\n14", (1.0, 1.0)),
        ("<think>14", (0.0, 1.0)),
    ],
)
def test_a_taskset_sees_what_was_thought_apart(modules, said, rewards):
    """As the servers of prime-rl give it: the reply is the answer, and the thinking is beside it."""
    from rlvr.verifiers.verifiers_task import load_tasks, rewards_of, trace_of

    (modules / "toy_thinking.py").write_text(TOYS)
    task = load_tasks("toy_thinking", {"count": 9}, 9)[7]
    assert tuple(score for score, _ in rewards_of(task, said).values()) == rewards
    message = trace_of(task, said).assistant_messages[-1]
    assert (message.reasoning_content is None) == (said == "14")
    assert "think>" not in (message.reasoning_content or "") + message.content


@needs("verifiers")
def test_a_taskset_may_shuffle_its_tasks(modules):
    """A problem is judged by its own task, in whichever order they are loaded again."""
    shuffled = TOYS.replace("for i in range(self.config.count):", "for i in random.sample(range(40), 40):")
    (modules / "toy_shuffled.py").write_text("import random\n" + shuffled)
    task = make_task("verifiers:toy_shuffled")
    asked = [(problem, str(2 * int(problem.prompt[-1]["content"].partition("+")[0]))) for problem in task.train]
    assert {task.verifier(problem, text).status for problem, text in asked} == {Status.CORRECT}
    gone = replace(task.train[0], reference={**task.train[0].reference, "hash": "0"})
    assert task.verifier(gone, asked[0][1]).status is Status.BAD_REFERENCE


@needs("verifiers")
def test_unknown_tasksets(modules):
    """A module that is not there, and one that exports none."""
    (modules / "no_taskset.py").write_text("x = 1\n")
    for name in ("not_installed_anywhere", "no_taskset"):
        with pytest.raises(LookupError, match=f"verifiers:{name}: "):
            make_task(f"verifiers:{name}")


@needs("verifiers")
def test_a_pack_is_a_taskset(modules):
    """It is loaded as they load one; their reward is our score, and no score is an error, not 0."""
    from rlvr.adapters.verifiers import v1
    from rlvr.verifiers.verifiers_task import rewards_of

    vf = v1()
    (modules / "pack_sums.py").write_text(
        "from rlvr.adapters.verifiers import taskset\n"
        "Sums = taskset('arithmetic', num_train=4, num_test=3)\n"
        "__all__ = ['Sums']\n"
    )
    config = vf.taskset_config_type("pack_sums")(id="pack_sums", split="test")
    tasks = list(vf.load_taskset(config))
    problems = make_task("arithmetic", num_train=4, num_test=3).test
    assert [task.data.prompt for task in tasks] == [problem.prompt for problem in problems]
    assert problems[0].reference not in tasks[0].data.model_dump_json(exclude={"prompt"})
    assert rewards_of(tasks[0], box_reference(problems[0])) == {"verdict": (1.0, 1.0)}
    assert rewards_of(tasks[0], "?") == {"verdict": (0.0, 1.0)}


@needs("verifiers")
def test_a_pack_judges_the_reply_with_its_thinking(modules):
    """A verifier of the form of completions sees it; one of answers reads the answer."""
    from rlvr.adapters.verifiers import taskset, v1

    vf = v1()
    (modules / "formed_pack.py").write_text(
        "from rlvr.core.registry import make_verifier\n"
        "from rlvr.core.types import Problem, Task\n"
        "def pack(): return Task('b', [Problem('p', 'q', '4')], [], make_verifier('format'))\n"
    )
    from rlvr.verifiers.verifiers_task import trace_of

    made = taskset("formed_pack:pack")
    for thought, score in ((None, 0.0), ("2 and 2", 1.0)):
        (task,) = made(made.config_class(id="x"))
        trace = trace_of(task, "<answer>4</answer>")
        trace.nodes[-1].message = vf.AssistantMessage(content="<answer>4</answer>", reasoning_content=thought)
        asyncio.run(task.score(trace))
        assert trace.rewards["verdict"].score == score


@needs("verifiers")
def test_a_verdict_without_score_is_their_error(modules):
    """TaskError; the trace's reward stays None."""
    from rlvr.adapters.verifiers import taskset, v1
    from rlvr.verifiers.verifiers_task import trace_of

    vf = v1()
    (modules / "broken_pack.py").write_text(
        "from rlvr.core.types import Problem, Task, bad_reference\n"
        "def verifier(problem, completion): return bad_reference('no service')\n"
        "def pack(): return Task('b', [Problem('p', 'q', 1)], [], verifier)\n"
    )
    made = taskset("broken_pack:pack")
    (task,) = made(made.config_class(id="x"))
    trace = trace_of(task, "anything")
    with pytest.raises(vf.TaskError, match="no service"):
        asyncio.run(task.score(trace))
    assert trace.rewards == {"verdict": None}

"""Adapters against TRL, inspect_ai and lm_eval; a test skips where these are not installed (`bash .ci/adapters`)."""

from __future__ import annotations

import math

import pytest

from rlvr.adapters import Judge, judge
from rlvr.core.registry import make_task
from rlvr.core.types import bad_reference, correct, incorrect
from tests.helpers.peers import answered, needs

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
    right = {problem.prompt: answered(problem) for problem in problems[:3]}

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

    from rlvr.adapters.lm_eval import pack_task

    problems = make_task("arithmetic", num_train=1, num_test=4).test
    right = {problem.prompt.strip(): answered(problem) for problem in problems[:2]}

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


def _completions(found):
    """The completions of each problem, of an evaluation by lm_eval."""
    (samples,) = found["samples"].values()
    return [sample["resps"][0] for sample in samples]


@needs("lm_eval")
def test_lm_eval_samples_repeats_from_a_model(tmp_path):
    """Repeats of transformers' generate differ; one completion is greedy, and so the same each time."""
    import lm_eval

    from rlvr.adapters.lm_eval import pack_task
    from rlvr.model.load.tiny import tiny_model, tiny_tokenizer

    tokenizer = tiny_tokenizer([problem.prompt for problem in make_task("arithmetic", num_train=1, num_test=9).test])
    tiny_model(tokenizer, 0).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)

    def evaluate(repeats):
        made = pack_task("arithmetic", num_train=1, num_test=2, repeats=repeats, generation={"max_gen_toks": 12})
        arguments = f"pretrained={tmp_path},device=cpu,dtype=float32"
        return _completions(lm_eval.simple_evaluate(model="hf", model_args=arguments, tasks=[made], bootstrap_iters=0))

    assert [len(set(texts)) for texts in evaluate(4)] == [4, 4]
    assert evaluate(1) == evaluate(1)


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


@needs("lm_eval")
def test_lm_eval_means_leave_out_what_has_no_score():
    """NaN is not a number of a mean."""
    from rlvr.adapters.lm_eval import mean_of_scored

    assert mean_of_scored([1.0, math.nan, 0.0]) == 0.5
    assert math.isnan(mean_of_scored([math.nan]))

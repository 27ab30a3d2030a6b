"""Adapters against the programs themselves; a test skips where its program is not installed (`bash .ci/adapters`)."""

from __future__ import annotations

import asyncio
import math
import sys

import pytest

from rlvr.adapters import Judge, judge
from rlvr.registry import make_task
from rlvr.types import Status, bad_reference, correct, incorrect
from rlvr.verifiers import Runner
from tests.helpers.peers import answered, needs

# What the programs warn of is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")


def sometimes_broken(problem, completion):
    """A verifier that fails for some completions."""
    return bad_reference("no service") if "broken" in completion else correct() if "4" in completion else incorrect()


TOYS = """
import verifiers.v1 as vf

class Data(vf.TaskData):
    answer: str

class Toy(vf.Task[Data]):
    @vf.reward
    async def right(self, trace) -> float:
        if trace.last_reply == "broken":
            raise OSError("no service")
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.5)
    async def short(self, trace) -> float:
        return float(len(trace.last_reply) < 10)

class Config(vf.TasksetConfig):
    count: int = 40

class Sums(vf.Taskset[Toy, Config]):
    def load(self):
        for i in range(self.config.count):
            yield Toy(Data(prompt=f"{i}+{i}?", answer=str(2 * i), system_prompt="Be short."), self.config.task)

__all__ = ["Sums"]
"""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A folder whose modules can be imported, here and in worker processes; tasksets are forgotten afterwards."""
    known = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


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
    assert rewards_of(tasks[0], answered(problems[0])) == {"verdict": (1.0, 1.0)}
    assert rewards_of(tasks[0], "?") == {"verdict": (0.0, 1.0)}


@needs("verifiers")
def test_a_verdict_without_score_is_their_error(modules):
    """TaskError; the trace's reward stays None."""
    from rlvr.adapters.verifiers import taskset, v1
    from rlvr.verifiers.verifiers_task import trace_of

    vf = v1()
    (modules / "broken_pack.py").write_text(
        "from rlvr.types import Problem, Task, bad_reference\n"
        "def verifier(problem, completion): return bad_reference('no service')\n"
        "def pack(): return Task('b', [Problem('p', 'q', 1)], [], verifier)\n"
    )
    made = taskset("broken_pack:pack")
    (task,) = made(made.config_class(id="x"))
    trace = trace_of(task, "anything")
    with pytest.raises(vf.TaskError, match="no service"):
        asyncio.run(task.score(trace))
    assert trace.rewards == {"verdict": None}


@needs("trl")
def test_trl_trains_five_steps(tmp_path):
    """GRPOTrainer on a CPU, with rewards of ours; those without score are left out of its means."""
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from rlvr.adapters.trl import reward, rows
    from rlvr.model.tiny import tiny_model, tiny_tokenizer

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

    made = pack_task("arithmetic", num_train=1, num_test=4, repeats=2)
    found = lm_eval.simple_evaluate(model=Mock(), tasks=[made], bootstrap_iters=0)
    results = next(iter(found["results"].values()))
    assert results["score,all"] == results["acc,all"] == 0.25
    assert results["unscored,all"] == 0.0


@needs("lm_eval")
def test_lm_eval_means_leave_out_what_has_no_score():
    """NaN is not a number of a mean."""
    from rlvr.adapters.lm_eval import mean_of_scored

    assert mean_of_scored([1.0, math.nan, 0.0]) == 0.5
    assert math.isnan(mean_of_scored([math.nan]))

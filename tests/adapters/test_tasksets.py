"""Tasksets of the package `verifiers` as packs, and packs as tasksets (`bash .ci/adapters`)."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

import pytest

from rlvr.core.registry import make_task
from rlvr.core.types import Status
from rlvr.verifiers import Runner
from tests.helpers.peers import answered, needs

# What the programs warn of is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")

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
    assert rewards_of(tasks[0], answered(problems[0])) == {"verdict": (1.0, 1.0)}
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

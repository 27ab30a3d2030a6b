"""Judges: settings, copies, rewards, what programs pass; reward functions of TRL, verl and OpenRLHF."""

from __future__ import annotations

import math
import multiprocessing
import pickle

import numpy as np
import pytest

from rlvr.adapters import Judge, Unscored, judge
from rlvr.adapters import openrlhf as openrlhf_adapter
from rlvr.adapters import skyrl as skyrl_adapter
from rlvr.adapters import tinker as tinker_adapter
from rlvr.adapters import trl as trl_adapter
from rlvr.adapters import verl as verl_adapter
from rlvr.adapters.judges import Rollout, completion_text, read_prompt, to_plain
from rlvr.core.registry import make_verifier
from rlvr.core.types import Problem, Reply, Status, Verdict, correct, incorrect
from rlvr.verifiers import VerifierErrors
from tests.helpers.environments import FAILING

PROBLEM = Problem("p", "Guess.", "7")


def make_judge_of(environment):
    return Judge(make_verifier("exact"), [PROBLEM], environment=environment)


@pytest.mark.parametrize("environment", [environment for environment, _ in FAILING.values()], ids=FAILING)
def test_an_environment_that_fails_gives_no_score(environment):
    """The model is not to blame: the rollout ends, and its reward is None, not that of the last text."""
    pack = make_judge_of(environment)
    found = Rollout(pack, PROBLEM, 0).say("7")
    assert (found.status, found.score) == (Status.ERROR, None)
    world = trl_adapter.environment(pack)()
    world.reset(problem="p")
    assert world.act("7") == "The episode has ended."
    assert world.get_reward() is None


def returns_true(problem, rng):
    said = yield
    return said == "7"


def returns_half(problem, rng):
    yield
    return 0.5


def leaves_it(problem, rng):
    yield


@pytest.mark.parametrize(
    "environment, said, reward",
    [(returns_true, "7", 1.0), (returns_true, "6", 0.0), (returns_half, "7", 0.5), (leaves_it, "7", 1.0)],
)
def test_an_environment_returns_what_a_verifier_may(environment, said, reward):
    """A bool, a number, or None, for the verifier. An ended rollout stays ended."""
    world = trl_adapter.environment(make_judge_of(environment))()
    world.reset(problem="p")
    world.act(said)
    assert world.get_reward() == reward
    assert world.act("7") == "The episode has ended."
    assert world.get_reward() == reward


def echo(problem, rng):
    said = yield
    while True:
        said = yield Reply(f"<{said}>")


@pytest.mark.parametrize("argument, text", [(7, "7"), (None, "null"), (["7"], '["7"]'), ({"a": 1}, '{"a": 1}')])
def test_a_model_cannot_break_an_environment_by_its_arguments(argument, text):
    """What TRL reads out of a call may be any value of JSON."""
    world = trl_adapter.environment(make_judge_of(echo))()
    world.reset(problem="p")
    assert world.act(argument) == f"<{text}>"
    assert world.get_reward() == (1.0 if text == "7" else 0.0)


def test_rows_for_an_environment_are_chats():
    """TRL offers tools in chats only; so are all rows where some are. Else prompts stay texts."""
    chat = [{"role": "user", "content": "Guess."}]
    assert trl_adapter.rows(make_judge_of(echo)) == [{"prompt": chat, "problem": "p"}]
    mixed = Judge(make_verifier("exact"), [PROBLEM, Problem("q", chat, "7")])
    assert [row["prompt"] for row in trl_adapter.rows(mixed)] == [chat, chat]
    assert trl_adapter.rows(Judge(make_verifier("exact"), [PROBLEM]))[0]["prompt"] == "Guess."
    with pytest.raises(LookupError, match="without the column 'problem'"):
        trl_adapter.environment(make_judge_of(echo))().reset(prompt=chat)


def verify_steps(problem, completion):
    return Verdict(Status.INCORRECT, 0.0, steps=((1, 0.5), (2, -0.25)))


def test_process_rewards_are_part_of_the_reward():
    """As in rlvr's own trainer, where the rewards of steps are added to the score."""
    with Judge(verify_steps) as made:
        problem = Problem("", "?", "4")
        assert made.score(problem, "abc") == 0.25
        assert trl_adapter.reward(made)(["?"], ["abc"], reference=["4"]) == [0.25]
        found = verl_adapter.compute_score(made)("x", "abc", "4")
        assert (found["score"], found["acc"]) == (0.25, 0.0)
        assert Rollout(made, problem).say("abc").score == 0.0


def make_whitening_judge():
    return judge("combine", parts=("math",), whiten=("math",))


@pytest.mark.parametrize(
    "adapt",
    [
        verl_adapter.compute_score,
        openrlhf_adapter.reward_func,
        openrlhf_adapter.agent,
        skyrl_adapter.environment,
        tinker_adapter.problem_env,
    ],
)
def test_verifiers_of_whole_batches_are_refused_for_single_verdicts(adapt):
    """Alone, a wrong answer would score as a right one. TRL's reward functions are given batches."""
    with make_whitening_judge() as made:
        with pytest.raises(ValueError, match="asks for one verdict at a time"):
            adapt(made)
        wrong, right = trl_adapter.reward(made)(["?"] * 2, ["\\boxed{5}", "\\boxed{4}"], reference=["4"] * 2)
        assert wrong < right


def test_settings_are_refused_before_the_first_verdict():
    """And the share of verdicts without score is limited where that is asked for."""
    for given in ({"workers": -1}, {"timeout": -1.0}, {"error_budget": 2.0}):
        with pytest.raises(ValueError, match=next(iter(given)).replace("_", " ") + "|" + next(iter(given))):
            judge("math", **given)
    with pytest.raises(ValueError, match="two problems have the id 'p'"):
        Judge(make_verifier("exact"), [PROBLEM], [Problem("p", "Guess again.", "8")])
    with judge("math", error_budget=0.5) as made, pytest.raises(VerifierErrors, match="above the budget of 50"):
        made.scores([(Problem("", "?", None), "4")])
    with judge("math") as made:
        assert made.scores([(Problem("", "?", None), "4")]) == [None]


def test_a_process_has_one_copy_of_a_judge():
    """However often it is sent there: each copy would have workers of its own."""
    with judge("exact") as one, judge("exact") as other:
        copies = [pickle.loads(pickle.dumps(one)) for _ in range(3)]
        assert copies[0] is copies[1] is copies[2] is not one
        assert pickle.loads(pickle.dumps(other)) is not copies[0]
        assert copies[0].score(PROBLEM, "7") == 1.0
        copies[0].close()


def scored_in_child(made, queue):
    queue.put(made.score(PROBLEM, "7"))


def slowly_exact(problem, completion):
    """A verifier that worker processes run."""
    return completion == problem.reference


@pytest.mark.parametrize("copied", [False, True])
def test_a_forked_process_does_not_wait_for_a_lock_of_its_parent(copied):
    """Another thread of the parent may hold it at that moment."""
    with Judge(slowly_exact) as made:
        used = pickle.loads(pickle.dumps(made)) if copied else made
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=scored_in_child, args=(used, queue))
        with used._lock:
            child.start()
        try:
            assert queue.get(timeout=60) == 1.0
        finally:
            child.kill()
            child.join()
            used.close()


def fails(problem, completion):
    raise OSError("no service")


def test_no_score_is_never_zero():
    """None, or Unscored with the reason; of a rollout of a single turn, too."""
    with Judge(fails) as made:
        assert made.scores([(PROBLEM, "7")]) == [None]
        assert Rollout(made, PROBLEM).say("7").score is None
        with pytest.raises(Unscored, match="no service"):
            made.score(PROBLEM, "7")


GOOD, BAD, NONE = "so \\boxed{4}", "so \\boxed{5}", "no idea"


@pytest.fixture(scope="module")
def math_judge():
    """A judge without a pack."""
    with judge("math") as made:
        yield made


@pytest.fixture(scope="module")
def sums():
    """A judge of a pack."""
    with judge(task="arithmetic", num_train=6, num_test=4) as made:
        yield made


def box_reference(problem):
    return f"\\boxed{{{problem.reference}}}"


def test_trl_scores_in_order(math_judge):
    """References come from a column; texts and messages are completions; no score is None."""
    reward = trl_adapter.reward(math_judge, reference="answer")
    spoken = [{"role": "assistant", "content": GOOD}]
    found = reward(
        prompts=["2+2?"] * 4,
        completions=[GOOD, spoken, BAD, GOOD],
        completion_ids=[[1]] * 4,
        answer=["4", "4", "4", None],
    )
    assert found == [1.0, 1.0, 0.0, None]
    assert reward.__name__ == "rlvr"


def test_trl_rows_hold_no_references(sums):
    """A row names its problem; the reward finds the reference by it."""
    rows = trl_adapter.rows(sums, "test")
    assert {frozenset(row) for row in rows} == {frozenset(("prompt", "problem"))}
    keys = [row["problem"] for row in rows]
    reward = trl_adapter.reward(sums)
    texts = [box_reference(sums.problem(key)) for key in keys]
    assert reward([row["prompt"] for row in rows], texts, problem=keys) == [1.0] * 4
    assert reward([row["prompt"] for row in rows], [*texts[1:], "?"], problem=keys)[-1] == 0.0


def test_trl_needs_a_column(math_judge):
    """A data set with neither a problem nor a reference is refused; so is an unknown problem."""
    with pytest.raises(LookupError, match="no column 'problem' and no column 'reference'"):
        trl_adapter.reward(math_judge)(["?"], [GOOD])
    with pytest.raises(LookupError, match="no problem 'x' in this pack"):
        trl_adapter.reward(math_judge)(["?"], [GOOD], problem=["x"])


def test_verl_scores(math_judge, sums):
    """By reference, and by the problem of a row; the parts of the reply are a verdict's. No score is no 0."""
    score = verl_adapter.compute_score(math_judge)
    found = score("math", GOOD, "4")
    assert found.pop("reason")
    assert found == {"score": 1.0, "acc": 1.0, "status": "correct"}
    assert score(data_source="math", solution_str=NONE, ground_truth="4", extra_info={"index": 3})["score"] == 0.0
    with pytest.raises(Unscored, match="math: bad_reference"):
        score("math", GOOD, None)
    row = verl_adapter.rows(sums, "sums", "test")[1]
    assert row["prompt"][-1]["role"] == "user"
    truth = row["reward_model"]["ground_truth"]
    by_row = verl_adapter.compute_score(sums)
    text = box_reference(sums.problem(truth))
    assert by_row("sums", text, truth, row["extra_info"], reward_router_address=None)["score"] == 1.0
    assert by_row("sums", "?", truth, row["extra_info"])["acc"] == 0.0


def test_openrlhf_scores(math_judge):
    """The response is what follows the prompt; no score ends the run."""
    reward = openrlhf_adapter.reward_func(math_judge)
    found = reward(["2+2? " + GOOD, "2+2? " + BAD], ["2+2? "] * 2, ["4", "4"])
    assert found["rewards"].tolist() == found["scores"].tolist() == [1.0, 0.0]
    assert found["extra_logs"]["correct"].tolist() == [1.0, 0.0]
    with pytest.raises(Unscored, match="bad_reference"):
        reward(["2+2? " + GOOD], ["2+2? "], [None])
    with pytest.raises(ValueError, match="does not hold its prompt"):
        reward([GOOD], ["2+2?"], ["4"])


def test_openrlhf_queries_end_with_special_tokens():
    """They are cut off where they are named; an exact answer is then exact."""
    with judge("exact") as made:
        query = ["<s>2+2? 4</s><|end|>"]
        assert openrlhf_adapter.reward_func(made)(query, ["2+2? "], ["4"])["rewards"].tolist() == [0.0]
        cut = openrlhf_adapter.reward_func(made, ends=["</s>", "<|end|>"])
        assert cut(query, ["2+2? "], ["4"])["rewards"].tolist() == [1.0]


def test_openrlhf_labels_are_problems(sums):
    """Of a judge with a pack."""
    problem = sums.part("train")[0]
    reward = openrlhf_adapter.reward_func(sums)
    query = f"{problem.prompt}{box_reference(problem)}"
    assert reward([query], [problem.prompt], [problem.id])["rewards"].tolist() == [1.0]


def test_a_judge_can_be_pickled(sums):
    """A copy in another process has workers of its own; a closed one starts others."""
    problem = sums.part("train")[0]
    sums.score(problem, "?")
    with pickle.loads(pickle.dumps(sums)) as copied:
        assert copied.verdict(problem, box_reference(problem)).status is Status.CORRECT
    sums.close()
    assert math.isclose(sums.score(problem, box_reference(problem)), 1.0)


def test_judge_takes_one_name():
    """A verifier or a task."""
    for given in ({}, {"verifier": "math", "task": "arithmetic"}):
        with pytest.raises(ValueError, match="expected one of them"):
            judge(**given)
    with pytest.raises(ValueError, match="no problems in the part 'test'"):
        judge("math").part("test")


THOUGHT = "<think>\n2 and 2\n</think>\n\n4"


def assistant(content, **fields):
    return {"role": "assistant", "content": content, **fields}


@pytest.mark.parametrize(
    "completion, text",
    [
        ("4", "4"),
        (assistant("4"), "4"),
        ([assistant("5"), {"role": "tool", "content": "no"}, assistant("4")], "4"),
        ([assistant([{"type": "text", "text": "4"}])], "4"),
        ([assistant([{"type": "text", "text": "4"}, {"type": "image"}, "2"])], "42"),
        ([assistant(None, tool_calls=[])], ""),
        ([{"role": "tool", "content": "no"}], ""),
        ([], ""),
        ([assistant("4", reasoning_content="2 and 2")], THOUGHT),
        ([assistant("\n4", reasoning="2 and 2\n")], THOUGHT),
        ([assistant("4", thinking=" 2 and 2")], THOUGHT),
        ([assistant([{"type": "thinking", "thinking": "2 and 2"}, {"type": "text", "text": "4"}])], THOUGHT),
        ([assistant("4", reasoning_content=None)], "4"),
        ([assistant("", reasoning_content="2 and")], "<think>\n2 and\n"),
    ],
)
def test_completion_text_is_the_last_message_of_the_assistant(completion, text):
    """The text of the last message of the assistant, with its thinking between its tags."""
    assert completion_text(completion) == text


@pytest.mark.parametrize("completion", [None, 4, [4], [assistant(4)], [assistant([4])]])
def test_a_completion_of_another_kind_is_refused(completion):
    """It is not judged as its repr."""
    with pytest.raises(TypeError, match="expected a text"):
        completion_text(completion)


def test_thinking_apart_is_judged_like_thinking_inside():
    """By a verifier of the form of the whole completion, and by one that reads the answer only."""
    inside = "<think>\n2 and 2\n</think>\n\n<answer>4</answer>"
    apart = [assistant("<answer>4</answer>", reasoning_content="2 and 2")]
    for name in ("format", "length", "math"):
        with judge(name) as made:
            score = trl_adapter.reward(made)
            one, other = score(["?"] * 2, [inside, apart], reference=["4"] * 2)
            assert one == other


@pytest.mark.parametrize(
    "stored, value",
    [
        (np.array([1, 2, 3]), [1, 2, 3]),
        (np.array([np.array(["a"], dtype=object), None], dtype=object), [["a"], None]),
        ({"numbers": np.array([1, 2]), "target": np.int64(3)}, {"numbers": [1, 2], "target": 3}),
        ([{"a": np.float32(0.5)}, (np.bool_(True),)], [{"a": 0.5}, (True,)]),
        (np.str_("4"), "4"),
    ],
)
def test_references_of_data_frames(stored, value):
    """Arrays become lists, their numbers and texts those of Python, at any depth."""
    found = to_plain(stored)
    assert found == value
    assert type(found) is type(value)


def test_a_reference_of_parquet_is_one_of_json():
    """The verdict is the same, in each way that rows arrive."""
    stored = {"numbers": np.array([1, 2, 3]), "target": np.int64(6)}
    text = "\\boxed{1+2+3}"
    with judge("countdown") as made:
        assert made.score(made.problem(None, "", stored), text) == 1.0
        assert trl_adapter.reward(made)(["?"], [text], reference=[stored]) == [1.0]
        assert verl_adapter.compute_score(made)("sums", text, stored)["score"] == 1.0


def test_prompts_are_texts_and_messages():
    """Those of several parts are read as their text; arrays of messages are lists."""
    message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "2+2?"}]}
    wanted = [{"role": "user", "content": "2+2?"}]
    for given in ([message], np.array([message], dtype=object), [{"role": "user", "content": "2+2?"}]):
        assert read_prompt(given) == wanted
    assert read_prompt("2+2?") == "2+2?"
    for wrong in (4, [4], [{"content": "?"}]):
        with pytest.raises(TypeError, match="expected a text or chat messages"):
            read_prompt(wrong)


class Reader:
    """A verifier that reads the prompt."""

    isolate = False
    reads_prompt = True

    def __call__(self, problem, completion):
        return correct() if problem.prompt == "2+2?" else incorrect(f"{problem.prompt!r}")


def test_a_verifier_that_reads_the_prompt_is_given_it():
    """verl passes none: it comes with the row, or the row is refused; a pack has it."""
    score = verl_adapter.compute_score(Judge(Reader()))
    assert score("x", "4", "4", {"prompt": "2+2?"})["score"] == 1.0
    for extra in (None, {}, {"index": 3}):
        with pytest.raises(LookupError, match="put it into extra_info as 'prompt'"):
            score("x", "4", "4", extra)
    assert verl_adapter.compute_score(Judge(Reader(), [Problem("p", "2+2?", "4")]))("x", "4", "p")["score"] == 1.0
    assert trl_adapter.reward(Judge(Reader()))(["2+2?", "2+3?"], ["4", "4"], reference=["4", "4"]) == [1.0, 0.0]


def test_a_column_named_problem_is_an_id_only_of_a_pack():
    """Elsewhere it is, say, the text of the problem, and the reference counts."""
    with judge("exact") as made:
        reward = trl_adapter.reward(made, reference="answer")
        assert reward(["?"] * 3, ["4", "5", "4"], problem=["2+2?"] * 3, answer=["4", "4", None]) == [1.0, 0.0, None]
        score = verl_adapter.compute_score(made)
        assert score("x", "4", "4", {"problem": "2+2?"})["score"] == 1.0
        assert score("x", "5", "4", {"problem": "2+2?"})["score"] == 0.0


def test_an_id_is_never_read_as_a_reference():
    """Of a pack: with extra_info or without it, the ground truth is an id."""
    with judge(task="arithmetic", num_train=3, num_test=2) as made:
        score, problem = verl_adapter.compute_score(made), made.part("test")[0]
        right = f"\\boxed{{{problem.reference}}}"
        for extra in (None, {}, {"problem": problem.id}):
            assert score("sums", right, problem.id, extra)["score"] == 1.0
        for wrong in ("4", "arithmetic/no-such"):
            with pytest.raises(LookupError, match="were its rows made with other options"):
                score("sums", right, wrong)
        with pytest.raises(LookupError, match="without the id of a problem"):
            score("sums", right, None)

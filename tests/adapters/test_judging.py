"""A judge: settings, copies in other processes, rewards, batches; and rollouts whose environment fails."""

from __future__ import annotations

import multiprocessing
import pickle

import pytest

from rlvr.adapters import Judge, Unscored, judge
from rlvr.adapters import openrlhf as openrlhf_adapter
from rlvr.adapters import skyrl as skyrl_adapter
from rlvr.adapters import tinker as tinker_adapter
from rlvr.adapters import trl as trl_adapter
from rlvr.adapters import verl as verl_adapter
from rlvr.adapters.judges import Rollout
from rlvr.core.registry import make_verifier
from rlvr.core.types import Problem, Reply, Status, Verdict, error
from rlvr.verifiers import VerifierErrors

PROBLEM = Problem("p", "Guess.", "7")


def played(environment):
    return Judge(make_verifier("exact"), [PROBLEM], environment=environment)


def fails_at_once(problem, rng):
    raise OSError("no sandbox")
    yield


def fails_at_a_turn(problem, rng):
    yield
    raise OSError("no sandbox")


def yields_no_reply(problem, rng):
    yield
    yield "text"


def yields_bare(problem, rng):
    yield
    yield


def begins_with_a_reply(problem, rng):
    yield Reply("hello")


def returns_no_verdict(problem, rng):
    yield
    return "right"


def says_error(problem, rng):
    yield
    return error("no sandbox")


@pytest.mark.parametrize(
    "environment",
    [fails_at_once, fails_at_a_turn, yields_no_reply, yields_bare, begins_with_a_reply, returns_no_verdict, says_error],
)
def test_an_environment_that_fails_gives_no_score(environment):
    """The model is not to blame: the rollout ends, and its reward is None, not that of the last text."""
    pack = played(environment)
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
    world = trl_adapter.environment(played(environment))()
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
    world = trl_adapter.environment(played(echo))()
    world.reset(problem="p")
    assert world.act(argument) == f"<{text}>"
    assert world.get_reward() == (1.0 if text == "7" else 0.0)


def test_rows_for_an_environment_are_chats():
    """TRL offers tools in chats only; so are all rows where some are. Else prompts stay texts."""
    chat = [{"role": "user", "content": "Guess."}]
    assert trl_adapter.rows(played(echo)) == [{"prompt": chat, "problem": "p"}]
    mixed = Judge(make_verifier("exact"), [PROBLEM, Problem("q", chat, "7")])
    assert [row["prompt"] for row in trl_adapter.rows(mixed)] == [chat, chat]
    assert trl_adapter.rows(Judge(make_verifier("exact"), [PROBLEM]))[0]["prompt"] == "Guess."
    with pytest.raises(LookupError, match="without the column 'problem'"):
        trl_adapter.environment(played(echo))().reset(prompt=chat)


def stepped(problem, completion):
    return Verdict(Status.INCORRECT, 0.0, steps=((1, 0.5), (2, -0.25)))


def test_process_rewards_are_part_of_the_reward():
    """As in rlvr's own trainer, where the rewards of steps are added to the score."""
    with Judge(stepped) as made:
        problem = Problem("", "?", "4")
        assert made.score(problem, "abc") == 0.25
        assert trl_adapter.reward(made)(["?"], ["abc"], reference=["4"]) == [0.25]
        found = verl_adapter.compute_score(made)("x", "abc", "4")
        assert (found["score"], found["acc"]) == (0.25, 0.0)
        assert Rollout(made, problem).say("abc").score == 0.0


def whitened():
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
    with whitened() as made:
        with pytest.raises(ValueError, match="asks for one verdict at a time"):
            adapt(made)
        wrong, right = trl_adapter.reward(made)(["?"] * 2, ["\\boxed{5}", "\\boxed{4}"], reference=["4"] * 2)
        assert wrong < right


def test_settings_are_refused_before_the_first_verdict():
    """And the share of verdicts without score is limited where that is asked for."""
    for given in ({"workers": 0}, {"timeout": -1.0}, {"error_budget": 2.0}):
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


def test_no_score_is_never_zero_in_a_rollout():
    """Of a single turn, too."""
    with Judge(fails) as made:
        assert Rollout(made, PROBLEM).say("7").score is None
        with pytest.raises(Unscored, match="no service"):
            made.score(PROBLEM, "7")


def fails(problem, completion):
    raise OSError("no service")

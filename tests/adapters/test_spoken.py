"""What programs pass as completions, prompts and references, and what a verifier reads of it."""

from __future__ import annotations

import numpy as np
import pytest

from rlvr.adapters import Judge, judge
from rlvr.adapters import trl as trl_adapter
from rlvr.adapters import verl as verl_adapter
from rlvr.adapters.judges import completion_text, read_prompt, to_plain
from rlvr.core.types import Problem, correct, incorrect

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
def test_what_the_model_said(completion, text):
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

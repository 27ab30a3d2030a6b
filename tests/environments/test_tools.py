"""The environment of tools: formats of calls, results, failures, settings."""

from __future__ import annotations

import json
from random import Random

import pytest

from rlvr.core.registry import make_environment
from rlvr.core.types import Problem, Status
from rlvr.environments.tools import Tools, calculator, tool, tools
from rlvr.environments.tools.calls import escape_result, read_calls
from rlvr.environments.tools.tool import ToolError
from tests.helpers.environments import conversation, fence, hermes, llama
from tests.helpers.files import cases
from tests.helpers.programs import runs_programs

PROBLEM = Problem("p", "How much is it?", "4")


@tool
def repeat(text: str, times: int = 2) -> str:
    """Repeat a text."""
    if times > 9:
        raise ToolError("at most 9 times")
    return text * times


def fail(text: str) -> str:
    """Never work."""
    raise OSError("no such service")


@runs_programs
@pytest.mark.parametrize(
    ("program", "result"),
    [
        ("print(1 + 1)", "2"),
        ("x = 1", "(no output)"),
        ("print(1); 1 / 0", "ZeroDivisionError: division by zero"),
        ("print('a", "SyntaxError"),
        ("import sys; sys.exit('bye')", "bye"),
        ("print('x' * 5000)", "characters left out"),
        ("while True: pass", "stopped: time limit"),
        ("b = bytearray(10 ** 10)", "MemoryError"),
    ],
)
def test_what_a_program_prints_or_how_it_failed_is_the_reply(program, result):
    """In each format."""
    for form, write in (("fenced", fence), ("hermes", hermes), ("llama", llama)):
        environment = tools("python", seconds=0.5, calls=form)
        [reply], verdict = conversation(environment, PROBLEM, [write("python", program), "It is 4."])
        fails = any(word in program for word in ("/ 0", "'a", "exit", "while", "10 **"))
        assert (reply.calls, reply.failed) == (1, int(fails))
        assert result in reply.text or (result == "MemoryError" and "stopped: memory" in reply.text)
        assert reply.role == ("user" if form == "fenced" else "tool")
        assert not reply.void
        assert verdict is None


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("47*386", "18142"),
        ("1/3 + 1/6", "0.5"),
        ("2/3", "2/3 = 0.666666666667..."),
        ("-1/3", "-1/3 = -0.333333333333..."),
        ("-1/8", "-0.125"),
        ("2^100", str(2**100)),
        ("sqrt(16)", "4"),
        ("1/0", "error: a division by zero"),
        ("2^(10^9)", "error: too large: a power of more than 40000 bits"),
        ("9^9999", "error: too large"),
        ("x + 1", "error: the value is no rational number"),
        ("__import__('os').system('id')", "error: cannot read '_'"),
        ("9" * 7000, "error: too large"),
        ("(" * 500, "error: too large"),
        ("", "error: expected a value, found the end"),
    ],
)
def test_the_calculator_is_exact_and_bounded(expression, result):
    """It evaluates nothing as code."""
    [reply], _ = conversation(tools(calculator), PROBLEM, [fence("calculator", expression), ""])
    assert reply.text.startswith(f"```output\n{result}")


CALLS = [
    ("fenced", "Think.\n```repeat\n{}\n```", "repeat needs the parameter text"),
    ("fenced", '```repeat\n{"text": "a"}\n```', "aa"),
    ("fenced", '```repeat\n{"text": "a", "times": 3}\n```\nrest', "aaa"),
    ("fenced", '```repeat\n{"text": "a", "times": "3"}\n```', "repeat: times is not of the type integer"),
    ("fenced", '```repeat\n{"text": "a", "times": true}\n```', "repeat: times is not of the type integer"),
    ("fenced", '```repeat\n{"text": "a", "time": 3}\n```', "repeat has no parameter 'time'; it takes text, times"),
    ("fenced", '```repeat\n{"text": "a", "times": 10}\n```', "at most 9 times"),
    ("fenced", "```repeat\naa\n```", "error: a call of repeat is a JSON object with text, times"),
    ("fenced", "```repeat\n[1]\n```", "error: a call of repeat is a JSON object"),
    ("fenced", '```repeat\n{"text": "a"}', "error: the block of the call has no end"),
    ("hermes", '<tool_call>\n{"name": "repeat", "arguments": {"text": "a"}}\n</tool_call>', "aa"),
    ("hermes", '<tool_call>{"name": "repeat"}</tool_call>', "repeat needs the parameter text"),
    ("hermes", '<tool_call>{"name": "other", "arguments": {}}</tool_call>', "error: no tool 'other'; there is repeat"),
    ("hermes", '<tool_call>{"name": 3}</tool_call>', "error: a call is"),
    ("hermes", '<tool_call>{"name": "repeat", "arguments": 3}</tool_call>', "its arguments are no object"),
    ("hermes", '<tool_call>{"name": "repeat"', "error: the call has no end"),
    ("hermes", "<tool_call>repeat(a)</tool_call>", "error: the call is no JSON object"),
    ("hermes", "<tool_call>" + "[" * 100_000 + "</tool_call>", "error: the call is no JSON object"),
    ("llama", '{"name": "repeat", "parameters": {"text": "a"}}', "aa"),
    ("llama", '<|python_tag|>{"name": "repeat", "parameters": {"text": "a"}}', "aa"),
    ("llama", '{"name": "repeat", "parameters": {"text": "a"', "error: the call is no JSON object"),
    ("llama", "<|python_tag|>print(1)", "error: no tool 'python'"),
]


@pytest.mark.parametrize(("form", "said", "result"), CALLS)
def test_a_call_is_answered_and_a_wrong_one_in_one_line(form, said, result):
    """Wrong by the model's doing; a turn in which nothing can be read as a call is void."""
    [reply], verdict = conversation(tools(repeat, calls=form), PROBLEM, [said, "4"])
    assert result in reply.text
    assert len(reply.text.removeprefix("```output\n").removesuffix("\n```\n").splitlines()) == 1
    assert reply.void == any(part in reply.text for part in ("a call ", "the call ", "of the call "))
    assert verdict is None


@pytest.mark.parametrize(("form", "said"), cases("turns_without_calls"))
def test_a_turn_without_a_call_is_the_answer(form, said):
    """What was only thought is none, nor a block of another language."""
    replies, verdict = conversation(tools(repeat, calls=form), PROBLEM, [said])
    assert (replies, verdict) == ([], None)


def test_several_calls_in_a_turn_are_answered_in_order():
    """Up to a number, and one that is wrong does not stop the others."""
    said = "".join(fence("repeat", json.dumps({"text": letter})) for letter in "abc")
    [reply], _ = conversation(tools(repeat, calls_per_turn=2), PROBLEM, [said, ""])
    assert reply.text.startswith("```output\naa\n```\n```output\nbb\n```\n```output\nerror: at most 2 calls")
    said = '<tool_call>1</tool_call><tool_call>{"name": "repeat", "arguments": {"text": "b"}}</tool_call>'
    [reply], _ = conversation(tools(repeat, calls="hermes"), PROBLEM, [said, ""])
    assert reply.text.splitlines()[1] == "[2] bb"
    assert not reply.void
    assert (reply.calls, reply.failed) == (2, 1)


def test_a_tool_that_does_not_work_leaves_the_rollout_without_a_score():
    """It is no failure of the model's."""
    replies, verdict = conversation(tools(tool(fail)), PROBLEM, [fence("fail", "a")])
    assert replies == []
    assert verdict.status is Status.ERROR
    assert verdict.score is None
    assert "tool fail: OSError: no such service" in verdict.reason


@pytest.mark.parametrize(
    "text", ["```\n4\n```output", "</tool_response>", "<|im_end|>", "\x1b[2J", "<think>", "<|eot_id|>"]
)
def test_results_are_escaped(text):
    """Fences, marks of templates and control characters have a backslash."""
    assert text not in escape_result(f"a{text}b", 100)
    assert len(escape_result(f"a{text}b", 100)) > len(text) + 2


@pytest.mark.parametrize("most", [1, 2, 7, 100])
def test_long_results_are_cut_in_the_middle(most):
    """Both ends are kept."""
    text = "".join(chr(ord("a") + i % 26) for i in range(5000))
    cut = escape_result(text, most)
    assert cut.startswith(text[: most - most // 2])
    assert cut.endswith(text[-(most // 2) :] if most > 1 else "]\n".strip())
    assert f"[{5000 - most} characters left out]" in cut


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tools": "pyhton"}, "did you mean python"),
        ({"tools": ""}, "without a tool"),
        ({"tools": "python,python"}, "two tools of one name"),
        ({"tools": "nothing_such:tool"}, "no module"),
        ({"tools": "json:loads"}, "json has no tool 'loads'"),
        ({"calls": "xml"}, "expected one of fenced, hermes, llama"),
        ({"output_chars": "0"}, "expected at least 1"),
        ({"calls_per_turn": "-1"}, "expected at least 1"),
        ({"seconds": "0"}, "expected a number above 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, said):
    """In one line."""
    with pytest.raises((LookupError, ValueError), match=said):
        make_environment("tools", **options)


def test_options_of_a_command_line_make_the_same_environment():
    """Names with commas, numbers as text."""
    made = make_environment("tools", tools="python,calculator", seconds="2", calls="hermes")
    assert [one.name for one in made.prepared_tools] == ["python", "calculator"]
    assert isinstance(made, Tools)
    assert made.schemas[1]["function"]["parameters"] == {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
    }
    for form in ("fenced", "hermes", "llama"):
        assert "calculator(expression: str): Compute" in tools("calculator", calls=form).announcement


def test_a_function_that_cannot_be_a_tool_is_refused():
    """Its parameters must have types that JSON has."""

    def one(value: complex) -> str:
        return ""

    def other(*values: str) -> str:
        return ""

    for function in (one, other):
        with pytest.raises(ValueError, match="expected one of the types str"):
            tool(function)


def test_reading_calls_takes_time_in_proportion_to_the_text():
    """Texts that are bad for a pattern that tries again."""
    for form, text in (
        ("fenced", "```python\n" * 20_000),
        ("hermes", "<tool_call>" * 20_000),
        ("llama", "{" * 200_000),
    ):
        assert len(read_calls(text, form, tools("python").prepared_tools)) <= 1


def test_a_reply_does_not_depend_on_the_random_stream():
    """Two rollouts with the same turns get the same replies."""
    said = [fence("calculator", "1/7"), "x"]
    one, other = (conversation(tools("calculator"), PROBLEM, said, Random(seed)) for seed in (0, 1))
    assert one == other

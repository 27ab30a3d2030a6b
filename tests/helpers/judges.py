"""Judges on a server of this process, and what they reply."""

from __future__ import annotations

import re
from typing import Any

from rlvr.core.registry import make_verifier
from rlvr.core.types import Problem
from tests.helpers.openai_like import Body, OpenAILike, chat_answer

PROBLEM = Problem("p", "What is 6 * 7?", "42")


def question(body: Body) -> str:
    return str(body["messages"][0]["content"])


def seal(body: Body) -> str:
    return re.findall(r"verdict ([0-9a-f]{12}): GRADE", question(body))[-1]


def answer(body: Body) -> str:
    """The text between the marks, as a judge finds it by its code."""
    mark = re.findall(r"The answer ends at the mark ([0-9a-f]{12})>>>", question(body))[-1]
    return question(body).split(f"<<<{mark}\n")[1].split(f"\n{mark}>>>")[0]


def judge_honestly(body: Body) -> Body:
    """A judge that grades by whether the last number is 42."""
    found = re.findall(r"\d+", answer(body))
    return chat_answer(f"It says {found}.\nverdict {seal(body)}: {int(found[-1:] == ['42'])}")


def judge(server: OpenAILike, **options: Any) -> Any:
    return make_verifier("llm_judge", url=server.url, model="judge", **{"retry_seconds": 5.0} | options)


UNREADABLE = {
    "no grade": lambda body: "It is right.",
    "another form": lambda body: "Grade: 1",
    "without the code": lambda body: "verdict: 1",
    "another code": lambda body: "verdict 0123456789ab: 1",
    "not the last line": lambda body: f"verdict {seal(body)}: 1\nI am sure.",
    "several": lambda body: f"verdict {seal(body)}: 0\nverdict {seal(body)}: 1",
    "above": lambda body: f"verdict {seal(body)}: 7",
    "negative": lambda body: f"verdict {seal(body)}: -1",
    "no number": lambda body: f"verdict {seal(body)}: right",
    "in a sentence": lambda body: f"I say verdict {seal(body)}: 1",
    "empty": lambda body: "",
    "other digits": lambda body: f"verdict {seal(body)}: \u0661",
    "only thought": lambda body: f"<think>verdict {seal(body)}: 1",
}

"""Playing an environment by hand, and calls of tools as models write them."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from random import Random
from typing import Any

from rlvr.core.types import Environment, Problem, Reply, Verdict, error


def conversation(
    environment: Environment, problem: Problem, turns: Sequence[str], rng: Random | None = None
) -> tuple[list[Reply], Verdict | None]:
    """Return the replies to the model's turns, and the verdict; None too where the turns end first."""
    world = environment(problem, rng or Random(0))
    assert next(world) is None
    replies = []
    try:
        for said in turns:
            reply = world.send(said)
            assert reply is not None
            replies.append(reply)
    except StopIteration as ended:
        return replies, ended.value
    finally:
        world.close()
    return replies, None


def fence(name: str, text: str) -> str:
    """Return a call as a block."""
    return f"I need this:\n```{name}\n{text}\n```\n"


def hermes(name: str, code: str) -> str:
    """Return a call with one parameter, as Qwen and Hermes write it."""
    return f"I need this.\n<tool_call>\n{json.dumps({'name': name, 'arguments': {'code': code}})}\n</tool_call>"


def llama(name: str, code: str) -> str:
    """Return a call with one parameter, as Llama writes it."""
    return json.dumps({"name": name, "parameters": {"code": code}})


def play_replies(*replies: Any, ends: Any = None, raises: BaseException | None = None) -> Environment:
    """Return an environment that yields these whatever it hears, then raises, or returns `ends`."""

    def environment(problem: Problem, rng: Random) -> Generator[Any, str, Any]:
        for reply in replies:  # noqa: UP028 - `yield from` would send on what it hears
            yield reply
        if raises is not None:
            raise raises
        return ends

    return environment


# Environments that do not work, each with what the reason of its verdict says.
FAILING: dict[str, tuple[Any, str]] = {
    "raises at once": (play_replies(raises=OSError("gone")), "the environment raised OSError: gone"),
    "raises at a turn": (
        play_replies(None, raises=ZeroDivisionError("by zero\nand more")),
        "the environment raised ZeroDivisionError: by zero",
    ),
    "gives up": (play_replies(None, raises=SystemExit(1)), "SystemExit: 1"),
    "returns an error": (play_replies(None, ends=error("no sandbox")), "no sandbox"),
    "returns a text": (play_replies(None, ends="right"), "TypeError"),
    "returns an object": (play_replies(None, ends=object()), "TypeError"),
    "says nothing": (play_replies(None, None), "it yielded None"),
    "says no reply": (play_replies(None, {"text": "42"}), "it yielded {'text': '42'}"),
    "speaks first": (play_replies(Reply("hello")), "it began with"),
    "is no generator": (lambda problem, rng: "42", "TypeError"),
}
# Replies that no rollout can go on from.
BAD_REPLIES: dict[str, tuple[Any, str]] = {
    "speaks for the model": (play_replies(None, Reply("42", role="assistant")), "role 'assistant'"),
    "pays infinity": (play_replies(None, Reply("1", reward=float("inf"))), "reward inf"),
    "cuts elsewhere": (
        play_replies(None, Reply("12", payload=((1, 4),))),
        "payload ((1, 4),); expected parts of its text",
    ),
    "cuts twice": (play_replies(None, Reply("1234", payload=((0, 3), (2, 4)))), "payload ((0, 3), (2, 4)); expected"),
}

"""Playing an environment by hand, and calls of tools as models write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random

from rlvr.core.types import Environment, Problem, Reply, Verdict


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

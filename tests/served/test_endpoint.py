"""Requests to an OpenAI-compatible server: what they hold, what is read of responses, and failures."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from rlvr.core.endpoint import Endpoint, RequestLost, request_options
from rlvr.core.http import RequestRefused
from rlvr.core.types import Sampling
from tests.helpers.openai_like import chat_answer, openai_like

SAMPLING = Sampling(8, 0.7, 0.9, 0, ("END",))
ASKED = [{"role": "user", "content": "1+1"}]
KEY = "sk-9f8e7d6c5b4a"


def endpoint_at(url: str, model: str = "m", **changes: Any) -> Endpoint:
    return Endpoint(url, model, **{"retry_seconds": 20.0, "request_seconds": 5.0} | changes)


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        (chat_answer("2"), "2"),
        (chat_answer("2", reasoning="add"), "<think>\nadd\n</think>\n\n2"),
        (chat_answer("\n\n2", reasoning_content="\nadd\n"), "<think>\nadd\n</think>\n\n2"),
        (chat_answer("2", reasoning="add", reasoning_content="add"), "<think>\nadd\n</think>\n\n2"),
        (chat_answer("2", reasoning=None, reasoning_content=""), "2"),
        (chat_answer(None, "length", reasoning="add and"), "<think>\nadd and\n"),
        (chat_answer(None, reasoning="add"), "<think>\nadd\n</think>\n\n"),
        (chat_answer(None, refusal="No."), "No."),
        (chat_answer(None), ""),
        ({**chat_answer("2"), "stop_reason": "END"}, "2END"),
        ({**chat_answer("2"), "stop_reason": 151645}, "2"),
        ({**chat_answer("2", "length"), "stop_reason": None}, "2"),
        (chat_answer("2", "tool_calls"), "2"),
        (chat_answer([{"type": "text", "text": "2"}, {"type": "text", "text": "."}]), "2."),  # type: ignore[arg-type]
        (chat_answer("2\ud800"), "2?"),
    ],
)
def test_texts_of_chat_responses(choice, text):
    """Reasoning that a server cut off is put back, as the model wrote it; a stop string too."""
    with openai_like(lambda body: dict(choice)) as server:
        made = endpoint_at(server.url).complete(ASKED, SAMPLING, 1)
    assert made.text == text
    assert made.finish == ("length" if choice["finish_reason"] == "length" else "stop")


@pytest.mark.parametrize("owner", ["vllm", "sglang", "openai"])
def test_a_request_is_for_one_sample_with_its_seed(owner):
    """n is 1. Engines that read them are sent the fields that a model's generation config would otherwise set."""
    with openai_like(lambda body: chat_answer("2"), owner=owner) as server:
        endpoint_at(server.url, options=('reasoning_effort="low"',)).complete(ASKED, SAMPLING, 77)
        [body] = server.bodies
    expected = {
        "model": "m",
        "messages": ASKED,
        "n": 1,
        "stream": False,
        "seed": 77,
        "max_tokens": 8,
        "temperature": 0.7,
        "top_p": 0.9,
        "stop": ["END"],
        "reasoning_effort": "low",
    }
    neutral = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    assert body == (expected if owner == "openai" else expected | neutral)


def status(code: int, **headers: str):
    return lambda number, handler: number <= 2 and (handler.send_json({"error": "x"}, code, headers), True)[1]


FAULTS = {
    **{str(code): status(code) for code in (408, 425, 429, 500, 502, 503, 504)},
    "dropped": lambda number, handler: number <= 2 and (handler.drop(), True)[1],
    "half": lambda number, handler: number <= 2 and (handler.send_json(b'{"choices": ['), True)[1],
    "200 with an error": lambda number, handler: number <= 2 and (handler.send_json({"error": {}}), True)[1],
    "aborted": lambda number, handler: (
        number <= 2
        and (handler.send_json({"choices": [chat_answer("2", "abort")], "usage": {"completion_tokens": 1}}), True)[1]
    ),
    "silent": lambda number, handler: number <= 2 and (time.sleep(2), handler.drop(), True)[2],
}


@pytest.mark.parametrize("name", FAULTS)
def test_failures_are_repeated(name):
    """The third attempt succeeds; every attempt is the same request, its seed too."""
    silent = name == "silent"
    with openai_like(lambda body: chat_answer("2")) as server:
        server.fault = FAULTS[name]
        endpoint = endpoint_at(server.url, request_seconds=1.0 if silent else 60.0, retry_seconds=60.0)
        assert endpoint.complete(ASKED, SAMPLING, 5).text == "2"
        assert server.bodies == [server.bodies[0]] * 3


@pytest.mark.parametrize(
    ("said", "tokens"),
    [({"usage": {"completion_tokens": 9}}, 9), ({"usage": None}, 3), ({"usage": None, "token_ids": [5, 6]}, 2)],
)
def test_tokens_are_counted_without_usage(said, tokens):
    """By the ids, else a quarter of the characters, rounded up."""
    with openai_like(lambda body: chat_answer("nine chars") | said) as server:
        assert endpoint_at(server.url).complete(ASKED, SAMPLING, 5).tokens == tokens
        assert len(server.bodies) == 1


@pytest.mark.parametrize(
    "usage",
    [
        {},
        [],
        3,
        {"total_tokens": 9},
        {"completion_tokens": None},
        {"completion_tokens": -5},
        {"completion_tokens": 1e15},
    ],
)
def test_usage_that_counts_nothing(usage):
    """Is as none: the tokens are estimated, and nothing is asked for again."""
    with openai_like(lambda body: chat_answer("nine chars") | {"usage": usage}) as server:
        assert endpoint_at(server.url).complete(ASKED, SAMPLING, 5).tokens == 3
        assert len(server.bodies) == 1


@pytest.mark.parametrize(
    ("word", "finish"),
    [
        *((word, "stop") for word in ("eos", "end_turn", "STOP")),
        *((word, "length") for word in ("MAX_TOKENS", "repetition")),
        *((word, "filter") for word in ("content_filter", "SAFETY")),
    ],
)
def test_words_for_the_end_of_a_completion(word, finish):
    """Those of servers that nearly follow OpenAI's API; none is asked for again."""
    with openai_like(lambda body: chat_answer("2", word)) as server:
        assert endpoint_at(server.url).complete(ASKED, SAMPLING, 5).finish == finish
        assert len(server.bodies) == 1


@pytest.mark.parametrize("said", [{"error": {"code": "content_filter"}}, {"message": "The content management policy"}])
def test_a_prompt_that_a_filter_refuses(said):
    """Is an empty completion: it would be refused again, and no evaluation could be completed."""
    with openai_like(lambda body: chat_answer("2")) as server:
        server.fault = lambda number, handler: (handler.send_json(said, 400), True)[1]
        made = endpoint_at(server.url).complete(ASKED, SAMPLING, 5)
    assert (made.text, made.finish, made.tokens) == ("", "filter", 0)


@pytest.mark.parametrize("said", [{"error": {"message": "overloaded"}}, {"choices": [], "why": "overloaded"}])
def test_what_a_server_says_in_place_of_an_answer_is_told(said):
    """With status 200 too."""
    with openai_like(lambda body: chat_answer("2")) as server:
        server.fault = lambda number, handler: (handler.send_json(said), True)[1]
        with pytest.raises(RequestLost, match=r"does not follow OpenAI's schema.*overloaded"):
            endpoint_at(server.url, retry_seconds=0.2).complete(ASKED, SAMPLING, 5)


def test_a_url_without_its_path():
    """The refusal says what is missing."""
    with openai_like(lambda body: chat_answer("2")) as server:
        server.fault = lambda number, handler: handler.path[:3] != "/v1" and (handler.send_json({}, 404), True)[1]
        with pytest.raises(RequestRefused, match="expected the server's URL with /v1"):
            endpoint_at(server.url.removesuffix("/v1")).complete(ASKED, SAMPLING, 5)


@pytest.mark.parametrize(("code", "name"), [(429, "Retry-After"), (503, "Retry-After")])
def test_retry_after_is_honoured(code, name):
    """The next attempt comes no earlier than the server asks."""
    with openai_like(lambda body: chat_answer("2")) as server:
        server.fault = lambda number, handler: number == 1 and (handler.send_json({}, code, {name: "1"}), True)[1]
        began = time.monotonic()
        endpoint_at(server.url).complete(ASKED, SAMPLING, 5)
    assert time.monotonic() - began >= 1


def test_a_request_is_lost_when_its_time_is_over():
    """RequestLost with the last failure, within the budget of seconds."""
    with openai_like(lambda body: chat_answer("2")) as server:
        server.fault = lambda number, handler: (handler.send_json({"error": "busy"}, 500), True)[1]
        endpoint = endpoint_at(server.url, retry_seconds=1.0)
        began = time.monotonic()
        with pytest.raises(RequestLost, match=r"returned 500.*busy"):
            endpoint.complete(ASKED, SAMPLING, 5)
        assert time.monotonic() - began < 30
        assert len(server.bodies) > 1


@pytest.mark.parametrize("code", [400, 401, 403, 404, 422])
def test_refusals_are_not_repeated(code):
    """What cannot succeed is asked once."""
    with openai_like(lambda body: chat_answer("2")) as server:
        server.fault = lambda number, handler: (handler.send_json({"error": "no"}, code), True)[1]
        with pytest.raises(RequestRefused, match=f"refused the request .{code}"):
            endpoint_at(server.url).complete(ASKED, SAMPLING, 5)
        assert len(server.bodies) == 1


def test_other_name_of_the_limit():
    """A server that wants max_completion_tokens gets it, from the first refusal on."""

    def answer_with_fault(number: int, handler: Any) -> bool:
        if "max_completion_tokens" in handler.server.bodies[-1]:
            return False
        handler.send_json({"error": {"message": "Use 'max_completion_tokens' instead of 'max_tokens'."}}, 400)
        return True

    with openai_like(lambda body: chat_answer("2"), owner="openai") as server:
        server.fault = answer_with_fault
        endpoint = endpoint_at(server.url)
        for _ in range(2):
            assert endpoint.complete(ASKED, SAMPLING, 5).text == "2"
        assert [("max_tokens" in body, body.get("max_completion_tokens")) for body in server.bodies] == [
            (True, None),
            (False, 8),
            (False, 8),
        ]


def echo(code: int):
    """A server that repeats the key where it refuses it, also cut in the middle."""

    def answer_with_fault(number: int, handler: Any) -> bool:
        sent = handler.headers["Authorization"]
        handler.send_json({"error": f"no access: {sent}", "more": sent * 40}, code)
        return True

    return answer_with_fault


@pytest.mark.parametrize("code", [400, 401, 500])
def test_the_key_is_sent_and_never_shown(code, monkeypatch):
    """As a bearer token; errors that quote the server leave it out."""
    monkeypatch.setenv("OWN_KEY", KEY)
    with openai_like(lambda body: chat_answer("2")) as server:
        endpoint = endpoint_at(server.url, key_env="OWN_KEY", retry_seconds=0.3)
        endpoint.complete(ASKED, SAMPLING, 5)
        assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
        server.fault = echo(code)
        with pytest.raises((RequestRefused, RequestLost)) as caught:
            endpoint.complete(ASKED, SAMPLING, 5)
    assert "no access" in str(caught.value)
    assert KEY[:6] not in str(caught.value)
    assert KEY not in repr(vars(endpoint) | {"client": None})


def test_no_key_is_sent_where_none_is_named(monkeypatch):
    """A key for another service stays where it is."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("RLVR_API_KEY", raising=False)
    with openai_like(lambda body: chat_answer("2")) as server:
        endpoint_at(server.url).complete(ASKED, SAMPLING, 5)
        assert all("Authorization" not in headers for headers in server.headers)


def test_models_that_are_not_served():
    """The names that are; an unreachable server; a variable that is not set."""
    with openai_like(lambda body: chat_answer("2"), model="org/qwen") as server:
        with pytest.raises(ValueError, match=r"serves no model 'qwn'.*org/qwen"):
            endpoint_at(server.url, "qwn")
        with pytest.raises(ValueError, match="no such variable"):
            endpoint_at(server.url, "org/qwen", key_env="NOT_SET_ANYWHERE")
        assert endpoint_at(server.url, "org/qwen").engine == "vllm"


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (("a",), "expected key=JSON"),
        (("=1",), "expected key=JSON"),
        (("a=b",), "is not JSON"),
        (("seed=1",), "is set by other settings"),
        (("n=4",), "is set by other settings"),
        *(((f"{name}=1",), "is set by other settings") for name in ("temperature", "top_p", "top_k", "stop")),
        *(((f"{name}=1",), "changes what is measured") for name in ("echo", "best_of", "use_beam_search")),
        (("a=1", "a=2"), "is given twice"),
    ],
)
def test_request_options_that_do_not_fit(items, message):
    """One line for each."""
    with pytest.raises(ValueError, match=message):
        request_options(items)


def test_request_options():
    """Values are JSON."""
    fields = request_options(('a="x=y"', "b=1.5", 'c={"enable_thinking": false}', "d=null"))
    assert json.loads(json.dumps(fields)) == {"a": "x=y", "b": 1.5, "c": {"enable_thinking": False}, "d": None}

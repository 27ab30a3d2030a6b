"""A model on an OpenAI-compatible server. Each completion is a request, which is repeated if the server fails."""

from __future__ import annotations

import json
import os
import random
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from .http import FIRST_DELAY, LONGEST_DELAY, JSONClient, RequestRefused, ServerLost, UnexpectedResponse
from .printable import KEY_VARIABLE, kind_of
from .registry import did_you_mean
from .types import Message, RunError, Sampling

Ending = Literal["stop", "length", "filter"]
SCHEMA = "OpenAI's schema"
TEMPORARY_STATUSES = (408, 409, 425, 429)  # statuses of requests that may succeed later
ENGINES = ("vllm", "sglang")  # what /models says of them: they read more fields than OpenAI's
# Sent to those servers, since a model's generation config would change these otherwise.
NEUTRAL = {"min_p": 0.0, "repetition_penalty": 1.0}
# Finish reasons of OpenAI's API and of similar servers. With another one ("abort", "error", null) the
# server did not finish the completion.
FINISHES: dict[str, Ending] = {
    **dict.fromkeys(("stop", "eos", "eos_token", "end_turn", "stop_sequence", "tool_calls", "function_call"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "model_length", "repetition"), "length"),
    **dict.fromkeys(("content_filter", "safety"), "filter"),
}
FILTER_REFUSAL = re.compile(r"content[_ ](filter|policy|management)", re.IGNORECASE)  # of a prompt that is refused
LARGEST_LOGPROB = 1e-3  # rounding; NaN is no number below it
MOST_TOKENS = 2**24  # more than any completion has: a server that says so does not count them
PATHS = {"chat": "/chat/completions", "completions": "/completions"}
LIMITS = ("max_tokens", "max_completion_tokens")
RESERVED = frozenset(
    {"model", "prompt", "messages", "n", "stream", "seed", "temperature", "top_p", "top_k", "stop", *LIMITS}
)
# With these fields the response is not what was sampled.
OTHER_ANSWERS = frozenset({"best_of", "echo", "suffix", "stream_options", "use_beam_search"})
CHARACTERS = 4  # of a token, for an estimate if the server does not count
FIRST_LOOK, FIRST_ANSWER = 5.0, 30.0  # seconds in which the first request is repeated, and for its answer
T = TypeVar("T")
Question = Sequence[int] | str | Sequence[Message]


class RequestLost(Exception):
    """A request failed again and again until its time was over."""


@dataclass(frozen=True, slots=True)
class Generated:
    """A completion. content: without the reasoning, which many servers return apart.

    tokens: how many were sampled; an estimate if the server does not say. ids: of the tokens, None if it does not say.
    finish: "filter" if the server withheld the rest. stop: the stop string that ended it, or "".
    """

    content: str
    reasoning: str
    finish: Ending
    tokens: int
    ids: tuple[int, ...] | None
    stop: str

    @property
    def text(self) -> str:
        """The completion as the model wrote it, with the reasoning between its tags."""
        if not self.reasoning:
            return self.content + self.stop
        thought = f"<think>\n{self.reasoning.strip()}\n"
        if not self.content and self.finish != "stop":
            return thought
        return f"{thought}</think>\n\n{self.content.lstrip()}{self.stop}"


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log-probabilities of the tokens of a prompt. All but `ids` begin with the second token.

    top_ids, top_logprobs: of the k likeliest tokens at each place, the likeliest first.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    top_ids: tuple[tuple[int, ...], ...]
    top_logprobs: tuple[tuple[float, ...], ...]


class Endpoint:
    """A served model. Threads may share it.

    url: of the server, with /v1. key_env: the environment variable with its key. retry_seconds: how long a failed
    request is repeated. request_seconds: a request fails after so long without a byte of the response. options: further
    fields of each request, as key=JSON. Raises ValueError if the server does not serve the model or is unreachable.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api: str = "chat",
        key_env: str = KEY_VARIABLE,
        retry_seconds: float = 300.0,
        request_seconds: float = 600.0,
        options: Sequence[str] = (),
    ) -> None:
        self.model, self.api, self.budget = model, api, retry_seconds
        self.client = JSONClient(url, name="server", timeout=request_seconds, api_key=read_key(key_env))
        self.first_answer = min(request_seconds, FIRST_ANSWER)
        self.extra = request_options(options)
        self.closed = threading.Event()
        self.limit_field = "max_tokens"
        self.engine, self.max_model_len = self._look()

    def _look(self) -> tuple[str, int | None]:
        """Return the engine ("" if unknown) and the context length, None if the server does not say."""
        try:
            answer = self._repeat(lambda: self.client.get("/models", timeout=self.first_answer), FIRST_LOOK)
            rows = self.client.read("/models", answer, lambda a: [dict(row) for row in a["data"]])
        except UnexpectedResponse:
            return "", None
        except RequestRefused as error:
            if error.status in (401, 403):
                raise ValueError(f"{error}; the key is read from an environment variable (--key-env)") from error
            return "", None
        except RequestLost as error:
            raise ValueError(f"{error}; expected an OpenAI-compatible server, its URL with /v1") from error
        names = [str(row.get("id")) for row in rows]
        if names and self.model not in names:
            raise ValueError(f"{self.client.url} serves no model {self.model!r}; {did_you_mean(self.model, names)}")
        row = next((row for row in rows if row.get("id") == self.model), {})
        engine, length = str(row.get("owned_by", "")), row.get("max_model_len")
        return engine if engine in ENGINES else "", length if isinstance(length, int) and length > 0 else None

    def complete(self, question: Question, sampling: Sampling, seed: int) -> Generated:
        """Return one completion; an empty one if the server's filter withholds it.

        question: messages for the chat route, else a text or token ids. Raises RequestLost if the server fails for too
        long, RequestRefused if it refuses the request.
        """
        try:
            return self._repeat(lambda: self._attempt(question, sampling, seed), self.budget)
        except RequestRefused as error:
            if error.status == 400 and FILTER_REFUSAL.search(str(error)):
                return Generated("", "", "filter", 0, (), "")
            if error.status == 404 and not urlsplit(self.client.url).path:
                raise RequestRefused(f"{error}; expected the server's URL with /v1", 404) from error
            raise

    def prompt_logprobs(self, question: str | Sequence[int], top_k: int = 1) -> PromptLogprobs:
        """Return what a vLLM server says of the tokens of a text, or of these token ids; it also samples one more.

        Raises RequestLost if the server fails for too long, RequestRefused if it refuses the request, RunError if it
        answers for other tokens or with numbers that are no log-probabilities.
        """
        path = PATHS["completions"]
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": question if isinstance(question, str) else list(question),
        }
        body |= {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": top_k, "return_token_ids": True}

        def attempt() -> PromptLogprobs:
            answer = self.client.post(path, body | self.extra, idempotent=True)
            choice = self.client.read(path, answer, lambda a: dict(a["choices"][0]), SCHEMA)
            ids = self.client.read(path, choice, lambda c: tuple(map(int, c["prompt_token_ids"])), "vLLM's schema")
            if not isinstance(question, str) and ids != tuple(question):
                raise RunError(f"{self.client.url} answered for other tokens than were sent: another model or version?")
            return self.client.read(path, choice, lambda c: read_prompt_logprobs(c, ids, top_k), "vLLM's schema")

        found = self._repeat(attempt, self.budget)
        if not all(number <= LARGEST_LOGPROB for row in (found.logprobs, *found.top_logprobs) for number in row):
            raise RunError(f"{self.client.url} answered with numbers that are no log-probabilities")
        return found

    def _repeat(self, call: Callable[[], T], budget: float) -> T:
        """Repeat a call while the server fails, for `budget` seconds from the first failure; return its result."""
        first: float | None = None
        for attempt in count():
            try:
                return call()
            except (ServerLost, RequestRefused, UnexpectedResponse) as error:
                if isinstance(error, RequestRefused) and error.status not in TEMPORARY_STATUSES:
                    if self._renames_limit(error):
                        continue
                    raise
                first = first or time.monotonic()
                backoff = min(FIRST_DELAY * 2 ** min(attempt, 10), LONGEST_DELAY) * random.uniform(0.5, 1)
                pause = max(backoff, getattr(error, "retry_after", 0.0))
                if time.monotonic() + pause - first > budget or self.closed.wait(pause):
                    raise RequestLost(str(error)) from error
        raise AssertionError("unreachable: attempts end by returning or raising")

    def close(self) -> None:
        """End the requests under way in other threads, and refuse later ones."""
        self.closed.set()
        self.client.close()

    def _renames_limit(self, error: RequestRefused) -> bool:
        """Switch to the other name of the token limit if the server asks for it; return whether that is new."""
        if "max_completion_tokens" not in str(error) or self.api != "chat":
            return False
        changed, self.limit_field = self.limit_field != "max_completion_tokens", "max_completion_tokens"
        return changed

    def _attempt(self, question: Question, sampling: Sampling, seed: int) -> Generated:
        path = PATHS[self.api]
        answer = self.client.post(path, self.body(question, sampling, seed), idempotent=True)
        choice = self.client.read(path, answer, lambda a: dict(a["choices"][0]), SCHEMA)
        tokens = count_tokens(answer)
        return self.client.read(path, choice, lambda c: read_choice(c, tokens), SCHEMA)

    def body(self, question: Question, sampling: Sampling, seed: int) -> dict[str, Any]:
        """Return a request: OpenAI's fields, and those of the engine."""
        asked: dict[str, Any] = {"messages": [dict(m) for m in question]} if self.api == "chat" else {  # type: ignore[arg-type]
            "prompt": question if isinstance(question, str) else list(question)
        }  # fmt: skip
        body = {
            "model": self.model,
            **asked,
            "n": 1,
            "stream": False,
            "seed": seed,
            self.limit_field: sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if self.engine:
            body |= {**NEUTRAL, "top_k": sampling.top_k or -1}
        elif sampling.top_k:
            body["top_k"] = sampling.top_k
        if self.engine == "vllm" and self.api == "completions" and not isinstance(question, str):
            body |= {"return_token_ids": True}
        return body | self.extra


def read_prompt_logprobs(choice: Mapping[str, Any], ids: tuple[int, ...], top_k: int) -> PromptLogprobs:
    """Return the log-probabilities of a prompt in a choice of vLLM's response; LookupError where any is missing."""
    entries = choice["prompt_logprobs"]
    rows = [{int(i): float(at["logprob"]) for i, at in entry.items()} for entry in entries[1:]]
    if len(entries) != len(ids) or any(len(row) < top_k for row in rows):
        raise LookupError("too few log-probabilities")
    best = [sorted(row, key=lambda i, row=row: (-row[i], i))[:top_k] for row in rows]  # type: ignore[misc]
    return PromptLogprobs(
        ids,
        tuple(row[i] for i, row in zip(ids[1:], rows, strict=True)),
        tuple(tuple(row) for row in best),
        tuple(tuple(row[i] for i in top) for row, top in zip(rows, best, strict=True)),
    )


def count_tokens(answer: Mapping[str, Any]) -> int | None:
    """Return the number of sampled tokens in `usage`; None if it is missing or cannot be true."""
    usage = answer.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    return int(tokens) if isinstance(tokens, int | float) and 0 <= tokens <= MOST_TOKENS else None


def read_choice(choice: Mapping[str, Any], tokens: int | None) -> Generated:
    """Return a choice of a response. Raises ServerLost for one that the server did not finish.

    tokens: as the server counted them; None: count its ids, else estimate from the text.
    """
    named = choice.get("finish_reason")
    finish = FINISHES.get(str(named).lower())
    if finish is None:
        raise ServerLost(f"the server ended a completion with {named!r:.80}")
    message = choice.get("message")
    said: Mapping[str, Any] = choice if message is None else message
    content = said["text"] if message is None else said.get("content") or said.get("refusal")
    ids, stop = choice.get("token_ids"), choice.get("stop_reason", choice.get("matched_stop"))
    known = None if ids is None else tuple(int(i) for i in ids)
    text, reasoning = join_content(content), join_content(said.get("reasoning") or said.get("reasoning_content"))
    if tokens is None:
        tokens = (len(text) + len(reasoning) + CHARACTERS - 1) // CHARACTERS if known is None else len(known)
    return Generated(text, reasoning, finish, tokens, known, stop if isinstance(stop, str) and finish == "stop" else "")


def join_content(content: Any) -> str:
    """Return a message's content (a text, a list of parts or null) as one text without lone surrogates."""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if part.get("type", "text") in ("text", "reasoning"))
    if not isinstance(content, str | None):
        raise TypeError(f"content is {kind_of(content)}")
    return (content or "").encode("utf-8", "replace").decode()


def read_key(variable: str) -> str | None:
    """Return the key in an environment variable, or None. Raises ValueError if a named one is unset."""
    key = os.environ.get(variable, "").strip()
    if not key and variable != KEY_VARIABLE:
        raise ValueError(f"--key-env {variable}: the environment has no such variable, or it is empty")
    return key or None


def request_options(items: Sequence[str]) -> dict[str, Any]:
    """Return key=JSON options as fields. Raises ValueError for another form, and for fields that are set here."""
    fields: dict[str, Any] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise ValueError(f"--request-option {item!r:.80}: expected key=JSON")
        if name in RESERVED | OTHER_ANSWERS or name in fields:
            why = "is set by other settings" if name in RESERVED else "changes what is measured"
            why = "is given twice" if name in fields else why
            raise ValueError(f"--request-option {name}: it {why}; leave it out")
        try:
            fields[name] = json.loads(value)
        except ValueError as error:
            raise ValueError(
                f"--request-option {name}: {value!r:.80} is not JSON; expected true, 1 or '\"text\"'"
            ) from error
    return fields

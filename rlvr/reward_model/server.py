"""A reward model behind vLLM's pooling server: the routes /classify and /score. Standard library only."""

from __future__ import annotations

import http.client
import json
import math
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

CONNECTIONS = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}


class ServerLost(Exception):
    """The server is not there, says nothing in time, or fails."""


class RewardServer:
    """Requests to a server, each on a connection of its own, each tried 1 + `retries` times."""

    def __init__(self, url: str, *, timeout: float, retries: int) -> None:
        parts = urlsplit(url)
        if parts.scheme not in CONNECTIONS or not parts.hostname:
            raise ValueError(f"reward_model url {url!r}: expected http://HOST:PORT")
        self.url = url
        self.timeout = timeout
        self.retries = retries
        self._connect = CONNECTIONS[parts.scheme]
        self._host, self._port, self._path = parts.hostname, parts.port, parts.path.rstrip("/")

    def served_model(self) -> dict[str, Any]:
        """The first model that the server names: id, root, max_model_len."""
        answer = self.call("/v1/models")
        return dict(self._read("/v1/models", lambda: answer["data"][0]))

    def classify(self, model: str, ids: Sequence[Sequence[int]]) -> list[list[float]]:
        """The logits of each text, by its token ids."""
        body = {"model": model, "input": [list(text) for text in ids], "use_activation": False}
        answer = self.call("/classify", body)
        rows = self._read("/classify", lambda: sorted(answer["data"], key=lambda row: row["index"]))
        return self._all("/classify", [self._numbers(row, "probs") for row in rows], len(ids))

    def score(self, model: str, prompts: Sequence[str], completions: Sequence[str]) -> list[list[float]]:
        """The score of each completion as the answer to its prompt; the server joins the two."""
        body = {"model": model, "text_1": list(prompts), "text_2": list(completions), "use_activation": False}
        answer = self.call("/score", body)
        rows = self._read("/score", lambda: sorted(answer["data"], key=lambda row: row["index"]))
        return self._all("/score", [self._numbers(row, "score") for row in rows], len(prompts))

    def call(self, path: str, body: Any = None) -> Any:
        """The answer to a POST of `body` as JSON, to a GET where there is none.

        Raises ServerLost where no try brings one, ValueError where the server refuses the request.
        """
        for left in range(self.retries, -1, -1):
            try:
                return self._try(path, body)
            except ServerLost:
                if not left:
                    raise
        raise AssertionError("unreachable: the last try returns or raises")

    def _try(self, path: str, body: Any) -> Any:
        connection = self._connect(self._host, self._port, timeout=self.timeout)
        method, content = ("GET", None) if body is None else ("POST", json.dumps(body))
        try:
            connection.request(
                method, self._path + path, content, {"Content-Type": "application/json", "Connection": "close"}
            )
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        except TimeoutError as error:
            raise ServerLost(f"the reward server {self.url}{path} gave no answer in {self.timeout:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise ServerLost(
                f"the reward server {self.url}{path} is not there: {error or type(error).__name__}"
            ) from error
        finally:
            connection.close()
        if answer.status >= 500:
            raise ServerLost(f"the reward server {self.url}{path} answers {answer.status}: {text[:200]}")
        if answer.status >= 400:
            raise ValueError(f"the reward server {self.url}{path} refuses ({answer.status}): {text[:200]}")
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise ServerLost(f"the reward server {self.url}{path} answers with something that is no JSON") from error

    def _read(self, path: str, take: Any) -> Any:
        try:
            return take()
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"the reward server {self.url}{path} answers in another form than vLLM's") from error

    def _numbers(self, row: Any, name: str) -> list[float]:
        # JSON has no NaN, and servers write null for it.
        value = self._read(name, lambda: row[name])
        values = value if isinstance(value, list) else [value]
        return [math.nan if v is None else float(v) for v in values]

    def _all(self, path: str, rows: list[list[float]], expected: int) -> list[list[float]]:
        if len(rows) != expected:
            raise ValueError(f"the reward server {self.url}{path} gave {len(rows)} scores for {expected} texts")
        return rows

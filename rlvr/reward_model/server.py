"""vLLM's pooling server as a reward model: the routes /classify and /score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rlvr.core.http import JSONClient, UnexpectedResponse

SCHEMA = "vLLM's schema"


class RewardServer:
    """The pooling routes of one server. Scoring changes nothing there, so failed requests are sent 1 + `retries` times.

    Methods raise rlvr.core.http's ServerLost, RequestRefused and UnexpectedResponse.
    """

    def __init__(self, url: str, *, timeout: float, retries: int) -> None:
        self.client = JSONClient(url, name="reward server", timeout=timeout, retries=retries)

    def served_model(self) -> tuple[str, int]:
        """Return the id of the server's first model, and how many tokens it reads (0: the server does not say)."""

        def take(answer: Any) -> tuple[str, int]:
            model = answer["data"][0]
            return str(model["id"]), int(model.get("max_model_len") or 0)

        return self.client.read("/v1/models", self.client.get("/v1/models"), take, SCHEMA)

    def classify(self, model: str, ids: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the logits of each text, which travels as its token ids."""
        body = {"model": model, "input": [list(text) for text in ids], "use_activation": False}
        return self._rows("/classify", body, "probs", len(ids))

    def score(self, model: str, prompts: Sequence[str], completions: Sequence[str]) -> list[list[float]]:
        """Return the score of each completion as the answer to its prompt, in a list; the server joins the two."""
        body = {"model": model, "text_1": list(prompts), "text_2": list(completions), "use_activation": False}
        return self._rows("/score", body, "score", len(prompts))

    def _rows(self, path: str, body: dict[str, Any], field: str, expected: int) -> list[list[float]]:
        """Return a field of each row of the response, in the order of the texts."""

        def take(answer: Any) -> list[list[float]]:
            rows = sorted(answer["data"], key=lambda row: row["index"])
            return [numbers(row[field]) for row in rows]

        values = self.client.read(path, self.client.post(path, body, idempotent=True), take, SCHEMA)
        if len(values) != expected:
            raise UnexpectedResponse(
                f"the reward server {self.client.url}{path} returned {len(values)} scores for {expected} texts"
            )
        return values


def numbers(value: Any) -> list[float]:
    """Return a number, or a list of them, as a list. null is how servers write NaN, which JSON does not have."""
    return [math.nan if v is None else float(v) for v in (value if isinstance(value, list) else [value])]

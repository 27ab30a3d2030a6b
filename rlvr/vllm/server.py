"""One vLLM server, spoken to over HTTP: prompts and outputs travel as token ids (/inference/v1/generate)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from rlvr.core.http import JSONClient, ServerLost, UnexpectedResponse
from rlvr.core.types import RunError
from rlvr.vllm.engine import Output, Request, check_version, prompt_logprobs

SCHEMA = "vLLM's schema"
RESETS = 50  # attempts to reset the prefix cache, 0.1 s apart
HEALTH_SECONDS = 5.0
HOW_TO_START = "the servers are started by `rlvr serve MODEL`, or as it starts them"
T = TypeVar("T")


class StaleWeights(RunError):
    """A server answered with other weights than those that were pushed last."""


class Server:
    """A vLLM server. timeout: seconds it may take to answer before it counts as lost.

    workers: processes that hold its weights. backend: how these come in, see rlvr.vllm.receive. Known after `look`.
    """

    def __init__(self, url: str, timeout: float) -> None:
        # The server reads the same variable; it guards the public routes alone.
        key = os.environ.get("VLLM_API_KEY") or None
        self.client = JSONClient(url, name="vLLM server", timeout=timeout, api_key=key)
        self.url, self.timeout = self.client.url, timeout
        self.workers, self.backend, self.dtype, self.gpus = 0, "", "", list[str]()
        self.max_model_len = 0

    @property
    def name(self) -> str:
        """Return what messages call the server."""
        return f"the vLLM server {self.url}"

    def look(self) -> None:
        """Ask the server what it is. Raises ValueError that says how it must be started."""
        try:
            self.client.get("/health")
            version = self.get("/version", lambda found: str(found["version"]))
            self.max_model_len = self.get("/v1/models", lambda found: int(found["data"][0]["max_model_len"]))
            self.workers = self.get("/get_world_size", lambda found: int(found["world_size"]))
            answer = self.post("/collective_rpc", {"method": "describe_transfer"})
            found = self.read("/collective_rpc", answer, lambda found: [dict(each) for each in found["results"]])
            self.backend, self.dtype = self.read(
                "/collective_rpc", found, lambda found: (str(found[0]["backend"]), str(found[0]["dtype"]))
            )
            self.gpus = [str(each.get("gpu", "")) for each in found if each.get("gpu")]
        except (ServerLost, ValueError) as error:
            raise ValueError(f"{error}; {HOW_TO_START}") from error
        check_version(version)

    def get(self, path: str, take: Callable[[Any], T]) -> T:
        """Return `take` of the answer to a GET. Raises ServerLost, ValueError where the server refuses it."""
        return self.read(path, self.client.get(path), take)

    def post(self, path: str, body: Any, *, timeout: float | None = None) -> Any:
        """Return the answer to a POST. Raises ServerLost, ValueError where the server refuses it."""
        return self.client.post(path, body, timeout=timeout)

    def read(self, path: str, answer: Any, take: Callable[[Any], T]) -> T:
        """Return `take(answer)`. Raises ServerLost where the answer does not follow vLLM's schema."""
        try:
            return self.client.read(path, answer, take, SCHEMA)
        except UnexpectedResponse as error:
            raise ServerLost(str(error)) from error

    def sample(self, request: Request, version: str) -> Output:
        """Return the output of a request, sampled from the weights of a version.

        Raises StaleWeights where it comes from others, ServerLost where none comes.
        """
        path = "/inference/v1/generate"
        body = {"token_ids": list(request.prompt), "sampling_params": request.parameters(), "stream": False}
        answer = self.client.post(path, body, idempotent=True)  # the seed decides: a second time gives the same
        output, versions = self.read(path, answer, read_answer)
        if versions != [version]:
            shown = " and ".join(map(repr, versions)) or "none"
            raise StaleWeights(
                f"{self.name} answered with weights {shown} where {version!r} were pushed: it did not load them, or "
                "another run uses it, or it was started anew"
            )
        return output

    def illness(self) -> str:
        """Return why the server cannot be used; "" where it answers and its engine runs."""
        try:
            self.client.get("/health", timeout=HEALTH_SECONDS)
        except (ServerLost, ValueError) as error:
            return str(error)
        return ""

    def reset_cache(self) -> None:
        """Reset the prefix cache. The server refuses while it frees the blocks of the last request, so try again.

        Raises RunError where it keeps refusing.
        """
        for _ in range(RESETS):
            answer = self.client.post("/reset_prefix_cache", {}, idempotent=True)
            if self.read("/reset_prefix_cache", answer, lambda found: found["success"]):
                return
            time.sleep(0.1)
        raise RunError(f"{self.name} did not reset its prefix cache: requests are still running")

    def close(self) -> None:
        """End the requests under way in other threads, and refuse later ones."""
        self.client.close()


def read_answer(answer: dict[str, Any]) -> tuple[Output, list[str]]:
    """Return vLLM's response as an Output, and the versions of the weights that it was sampled from.

    Raises ServerLost for one that was cut off.
    """
    choice = answer["choices"][0]
    tokens = choice["token_ids"]
    logprobs = [at["logprob"] for at in choice["logprobs"]["content"]]
    if len(logprobs) != len(tokens):
        raise ServerLost(f"the vLLM server cut a request off: {len(tokens)} tokens with {len(logprobs)} logprobs")
    reason = choice["finish_reason"]
    if reason not in ("stop", "length"):
        raise ServerLost(f"the vLLM server ended a request with {reason!r}")
    versions = [str(span["version"]) for span in choice.get("weight_versions") or ()]
    of_prompt = prompt_logprobs(answer.get("prompt_logprobs"), lambda at: float(at["logprob"]))
    ended_by = choice["stop_reason"] if reason == "stop" else None
    return Output(tuple(tokens), tuple(logprobs), ended_by, of_prompt), versions

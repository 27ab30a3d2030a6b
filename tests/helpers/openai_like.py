"""A server on 127.0.0.1 with the routes of OpenAI's API; a function gives its answers, another one its failures."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from rlvr.core.types import Sampling
from rlvr.model.load.policy import Policy
from rlvr.sampling.torch_sampler import TorchSampler

Body = dict[str, Any]
Answer = Callable[[Body], Body]
"""A choice, with "usage" in it (None: left out of the response), to the body of a request."""
Fault = Callable[[int, "Handler"], bool]
"""What happens in place of an answer, to the request of this number; returns whether anything did."""


class OpenAILike(ThreadingHTTPServer):
    """Serves `model`. bodies: of the requests for completions, faulty ones too; headers: of all requests."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, answer: Answer, *, model: str = "m", owner: str = "vllm", length: int | None = None) -> None:
        self.answer, self.model, self.owner, self.length = answer, model, owner, length
        self.bodies: list[Body] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.fault: Fault = lambda number, handler: False
        self.most_at_once = self.at_once = 0
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients go away in these tests."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: OpenAILike

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def send_json(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def drop(self) -> None:
        """Break the connection."""
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        self.server.headers.append(dict(self.headers))
        if self.path != "/v1/models":
            return self.send_json({}, 404)
        about = {"id": self.server.model, "object": "model", "owned_by": self.server.owner}
        limit = {} if self.server.length is None else {"max_model_len": self.server.length}
        return self.send_json({"object": "list", "data": [about | limit]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.bodies.append(body)
            server.paths.append(self.path)
            server.headers.append(dict(self.headers))
            number = len(server.bodies)
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
        try:
            if server.fault(number, self):
                return
            choice = server.answer(body)
            usage = choice.pop("usage", {"completion_tokens": 3})
            told = {} if usage is None else {"usage": usage}
            self.send_json({"choices": [{"index": 0, **choice}], **told})
        finally:
            with server.lock:
                server.at_once -= 1


@contextmanager
def openai_like(answer: Answer, **about: Any) -> Iterator[OpenAILike]:
    """A server of this module; ended afterwards."""
    server = OpenAILike(answer, **about)
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def chat_answer(content: str | None, finish: str = "stop", **message: Any) -> Body:
    """The choice of a chat response."""
    return {"message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}


def policy_answer(policy: Policy) -> Answer:
    """The answers of a policy, as vLLM gives them: completions of token ids or of text, and chat where it has one."""
    sampler, computing = TorchSampler(policy), threading.Lock()

    def answer(body: Body) -> Body:
        if "messages" in body:
            ids = policy.render(body["messages"])
        else:
            ids = policy.render(body["prompt"]) if isinstance(body["prompt"], str) else body["prompt"]
        sampling = Sampling(
            body["max_tokens"], body["temperature"], body["top_p"], max(0, body["top_k"]), tuple(body.get("stop", ()))
        )
        with computing, torch.no_grad():
            [[made]] = sampler.generate([ids], sampling, [[body["seed"]]])
        stopped = next((stop for stop in sampling.stop if made.text.endswith(stop)), None)
        text = made.text.removesuffix(stopped) if stopped else made.text
        choice: Body = {"finish_reason": made.finish_reason, "stop_reason": stopped}
        choice |= {"message": {"role": "assistant", "content": text}} if "messages" in body else {"text": text}
        if body.get("return_token_ids"):
            choice["token_ids"] = list(made.token_ids)
        return choice | {"usage": {"completion_tokens": len(made.token_ids)}}

    return answer

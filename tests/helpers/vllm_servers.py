"""Servers with vLLM's routes and none of vLLM: the torch sampler behind HTTP, whose weights come as vLLM's do.

With them the trainer's side runs as it is: routing, pushes over a group of processes, loss of servers. What vLLM itself
does with weights and requests is tested with vLLM, in tests/vllm.
"""

from __future__ import annotations

import copy
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from rlvr.core.types import Sampler, Sampling
from rlvr.model.load.policy import Policy
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.sampling.vllm.proof import greedy
from rlvr.sampling.vllm.transfer import address_towards, broadcast, join_group, open_store
from rlvr.sampling.vllm.weights import engine_weights

Fault = Callable[["VLLMLike", "Handler"], bool]
"""What a route does in place of its own: it returns whether the request has been dealt with."""

GENERATE = "/inference/v1/generate"
SEEDS = [[10 * p + g for g in range(3)] for p in range(6)]
LOSES = "ignore:a vLLM server is lost:RuntimeWarning"


class VLLMLike(ThreadingHTTPServer):
    """A server with its own copy of a policy, whose weights are random until some are pushed.

    faults: by path. log: the paths of requests, in order. answered: (version, seed) of each completion. delay: seconds
    that a completion takes at least.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, policy: Policy, port: int = 0, host: str = "127.0.0.1") -> None:
        self.policy = copy.copy(policy)
        self.policy.model = self.policy.causal = copy.deepcopy(policy.causal)
        with torch.no_grad():
            for weight in self.policy.causal.parameters():
                weight.normal_(std=0.02)
        self.sampler = TorchSampler(self.policy)
        self.version, self.delay = "default", 0.0
        self.faults: dict[str, Fault] = {}
        self.log: list[str] = []
        self.answered: list[tuple[str, int]] = []
        self.group: Any = None
        self.about = {"backend": "rlvr_gloo", "dtype": str(policy.dtype).removeprefix("torch."), "gpu": ""}
        self.length = 256
        self.connections: set[socket.socket] = set()
        self.computing, self.working = threading.Lock(), threading.Lock()
        super().__init__((host, port), Handler)
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def die(self) -> None:
        """Be gone at once, as after SIGKILL: connections break, nobody listens, the group is left."""
        self.shutdown()
        self.server_close()
        self.group = None
        for connection in list(self.connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients go away in these tests."""

    def receive(self, info: dict[str, Any]) -> dict[str, torch.Tensor]:
        """The tensors of one part of a push."""
        received = {}
        try:
            for name, dtype, shape in zip(info["names"], info["dtype_names"], info["shapes"], strict=True):
                received[name] = torch.empty(shape, dtype=getattr(torch, dtype))
                broadcast(self.group, received[name])
        except RuntimeError:
            self.group = None
            raise
        return received

    def load(self, received: dict[str, torch.Tensor]) -> None:
        held = self.policy.causal.state_dict()
        tied = self.policy.causal.config.tie_word_embeddings
        with torch.no_grad():
            for name, value in received.items():
                if not (tied and name == "lm_head.weight"):
                    held[name].copy_(value)

    def has_weights_of(self, policy: Policy) -> bool:
        held = self.policy.causal.state_dict()
        return all(torch.equal(held[name], value) for name, value in engine_weights(policy))

    def score(self, prompt: list[int]) -> list[dict[str, Any] | None]:
        """The logprobs of a prompt's tokens, in vLLM's form."""
        row = torch.tensor([prompt])
        with self.computing, torch.no_grad():
            logprobs = token_logprobs(self.policy, row, torch.arange(len(prompt))[None] >= 1)[0][0, 1:].tolist()
        return [None, *({str(token): {"logprob": value}} for token, value in zip(prompt[1:], logprobs, strict=True))]

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        """vLLM's response."""
        scored = "prompt_logprobs" in body["sampling_params"]
        of_prompt = {"prompt_logprobs": self.score(body["token_ids"])} if scored else {}
        return {"choices": [self.complete(body)], **of_prompt}

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """A choice of vLLM's response."""
        asked, prompt = body["sampling_params"], body["token_ids"]
        with self.computing, torch.no_grad():
            if asked["temperature"] == 0:
                tokens = greedy(self.policy, prompt, asked["max_tokens"])
                ends = [place for place, token in enumerate(tokens) if token in asked["stop_token_ids"]]
                tokens = tokens[: ends[0] + 1] if ends else tokens
                row = torch.tensor([prompt + tokens])
                mask = torch.arange(row.shape[1])[None] >= len(prompt)
                logprobs = token_logprobs(self.policy, row, mask)[0][0, len(prompt) :].tolist()
                by = tokens[-1] if ends else None
            else:
                sampling = Sampling(
                    asked["max_tokens"], asked["temperature"], asked["top_p"], asked["top_k"], tuple(asked["stop"])
                )
                drawn = self.sampler.generate([prompt], sampling, [[asked["seed"]]])[0][0]
                tokens, logprobs = list(drawn.token_ids), list(drawn.logprobs)
                by = None if drawn.finish_reason == "length" else tokens[-1]
                if by is not None and by not in asked["stop_token_ids"]:
                    by = asked["stop"][0]
        time.sleep(self.delay)
        self.answered.append((self.version, asked["seed"]))
        return {
            "token_ids": tokens,
            "logprobs": {"content": [{"logprob": value} for value in logprobs]},
            "finish_reason": "length" if by is None else "stop",
            "stop_reason": by,
            "weight_versions": [{"version": self.version, "start": 0, "end": len(tokens)}],
        }


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: VLLMLike

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        with suppress(OSError):
            super().finish()

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        self.respond({})

    def do_POST(self) -> None:
        self.respond(json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}"))

    def respond(self, body: dict[str, Any]) -> None:
        server = self.server
        server.log.append(self.path)
        fault = server.faults.get(self.path)
        if fault is not None and fault(server, self):
            return
        try:
            with server.working if self.path in OF_THE_WORKER else nullcontext():
                content = ROUTES[self.path](server, body)
            self.reply(content)
        except Exception as error:  # as vLLM, which goes on
            with suppress(OSError):
                self.reply({"error": f"{type(error).__name__}: {error}"}, 500)

    def reply(self, content: Any, status: int = 200) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def join(server: VLLMLike, body: dict[str, Any]) -> Any:
    info = body["init_info"]
    store = open_store(info["master_address"], info["master_port"], 20.0, first=False)
    server.group = join_group(
        store, info["rank_offset"], info["world_size"], address=address_towards(info["master_address"]), timeout=20.0
    )


def leave(server: VLLMLike, body: dict[str, Any]) -> Any:
    server.group = None


def finish(server: VLLMLike, body: dict[str, Any]) -> Any:
    server.version = body.get("weight_version") or server.version


ROUTES: dict[str, Callable[[VLLMLike, dict[str, Any]], Any]] = {
    "/health": lambda server, body: None,
    "/version": lambda server, body: {"version": "0.32.0"},
    "/v1/models": lambda server, body: {"data": [{"max_model_len": server.length}]},
    "/get_world_size": lambda server, body: {"world_size": 1},
    "/collective_rpc": lambda server, body: {"results": [server.about]},
    "/init_weight_transfer_engine": join,
    "/start_weight_update": lambda server, body: None,
    "/update_weights": lambda server, body: server.load(server.receive(body["update_info"])),
    "/finish_weight_update": finish,
    "/shutdown_weight_transfer_engine": leave,
    "/reset_prefix_cache": lambda server, body: {"success": True},
    GENERATE: lambda server, body: server.generate(body),
}


# vLLM's worker does one thing after the other.
OF_THE_WORKER = {"/collective_rpc", "/init_weight_transfer_engine", "/start_weight_update", "/update_weights"}
OF_THE_WORKER |= {"/finish_weight_update", "/shutdown_weight_transfer_engine"}


def stand_in(model: str, host: str, port: int, backend: str, options: dict[str, Any]) -> list[str]:
    """The command of a process that serves a folder's model, as rlvr.sampling.vllm.server.server_command is called."""
    return [sys.executable, "-m", "tests.helpers.vllm_servers", model, str(port), host]


def main() -> None:
    """Serve the model of a folder at a port until the process ends."""
    folder, port, host = sys.argv[1:]
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    VLLMLike(Policy(model.eval(), AutoTokenizer.from_pretrained(folder)), int(port), host).thread.join()


def draw(sampler: Sampler) -> list[list[tuple[int, ...]]]:
    """The token ids of 18 completions of six prompts."""
    prompts = [sampler.policy.encode(f"{p}+{p + 1}=") for p in range(len(SEEDS))]
    return [[c.token_ids for c in group] for group in sampler.generate(prompts, Sampling(max_new_tokens=12), SEEDS)]


@contextmanager
def vllm_servers(policy: Policy, count: int = 2) -> Iterator[list[VLLMLike]]:
    """Yield servers of a policy's model, and end them afterwards."""
    servers = [VLLMLike(policy) for _ in range(count)]
    try:
        yield servers
    finally:
        for server in servers:
            server.die()


def after(count: int, fault: Fault) -> Fault:
    """A fault that begins with request number `count` (from 0)."""
    left = [count]

    def later(server: VLLMLike, handler: Handler) -> bool:
        left[0] -= 1
        return left[0] < 0 and fault(server, handler)

    return later


def dies(server: VLLMLike, handler: Handler) -> bool:
    """The server is gone."""
    threading.Thread(target=server.die, daemon=True).start()
    server.thread.join(5)
    return True


def fails(server: VLLMLike, handler: Handler) -> bool:
    """An internal error."""
    handler.reply({"error": "CUDA error: an illegal memory access"}, 500)
    return True


def babbles(server: VLLMLike, handler: Handler) -> bool:
    """Something that is no JSON."""
    handler.reply(b"<html>")
    return True


def misshapes(server: VLLMLike, handler: Handler) -> bool:
    """JSON of another form."""
    handler.reply({"choices": [], "results": None})
    return True


def is_silent(server: VLLMLike, handler: Handler) -> bool:
    """No answer."""
    time.sleep(60)
    return True


def agrees(server: VLLMLike, handler: Handler) -> bool:
    """Says yes, and does nothing."""
    handler.reply({"message": "done"})
    return True


def loads_nothing(server: VLLMLike) -> None:
    """From now on the server takes weights, says so, and loads none."""
    server.load = lambda received: None  # type: ignore[method-assign]


def loads_half(server: VLLMLike) -> None:
    """From now on the server loads every second tensor of what it takes."""
    load = server.load
    server.load = lambda received: load(dict(list(received.items())[::2]))  # type: ignore[method-assign]


def loads_the_push_before(server: VLLMLike) -> None:
    """From now on the server keeps what it takes, and loads what the push before it brought."""
    load, held = server.load, {name: value.clone() for name, value in server.policy.causal.state_dict().items()}

    def late(received: dict[str, torch.Tensor]) -> None:
        load({name: held[name] for name in received if name in held})
        held.update(received)

    server.load = late  # type: ignore[method-assign]


if __name__ == "__main__":
    main()

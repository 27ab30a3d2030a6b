"""Reward models made ready to score: loaded into this process, or reached behind a server."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rlvr.core.http import ServerLost
from rlvr.core.types import Pair, RunError
from rlvr.model.device import pick_device
from rlvr.reward_model import RewardModel
from rlvr.reward_model.scorer import Parts, Scorer, find_label, load_classifier, load_parts, settings_file
from rlvr.reward_model.server import RewardServer
from rlvr.reward_model.text import Encoded, Renderer, token_limit


class Backend(Protocol):
    """Computes scores: in this process or on a server."""

    def score(self, pairs: Sequence[Pair], texts: Sequence[Encoded]) -> list[tuple[float, ...] | str]:
        """Return the log-odds at each text's positions, or one line that says why a text has none."""
        ...


@dataclass(frozen=True)
class LoadedRewardModel:
    """A reward model that is ready: its renderer, its backend, and the mean and standard deviation to normalize by."""

    renderer: Renderer
    backend: Backend
    mean: float
    std: float


def load_reward_model(options: RewardModel) -> LoadedRewardModel:
    """Load the model, or reach the server. Raises RunError with one line where that fails."""
    try:
        parts = load_parts(options.model, revision=options.revision, trust_remote_code=options.trust_remote_code)
        label = find_label(parts.config.num_labels, parts.config.id2label, options.label, options.model)
        recorded = read_settings(parts)
        wanted = options.max_tokens or int(recorded.get("max_tokens", 0))
        limit = token_limit(parts.tokenizer, parts.config, wanted)
        backend: Backend
        if options.url is None:
            backend, tokenizer = load_local(options, label)
        else:
            backend, served_limit = reach_server(options, options.url, label)
            tokenizer, limit = parts.tokenizer, lowest(limit, served_limit)
        system_prompt = recorded.get("system_prompt") if options.system_prompt is None else options.system_prompt
        chat = recorded.get("chat", "auto") if options.chat == "auto" else options.chat
        renderer = Renderer(tokenizer, system_prompt=system_prompt, chat=chat, max_tokens=limit)
    except (ValueError, ServerLost) as error:
        raise RunError(f"reward_model: {error}") from error
    # The recorded statistics are those of log-odds, not of the steps' probabilities.
    measured = {} if options.separator else recorded
    mean = options.mean if options.mean is not None else float(measured.get("mean", 0.0))
    std = options.std if options.std is not None else float(measured.get("std", 1.0))
    return LoadedRewardModel(renderer, backend, mean, std)


def read_settings(parts: Parts) -> dict[str, Any]:
    """Return what `rlvr rm` recorded beside the model, empty where there is no such file."""
    file = settings_file(parts.source)
    recorded: dict[str, Any] = json.loads(Path(file).read_text("utf-8")) if file else {}
    return recorded


def load_local(options: RewardModel, label: int) -> tuple[LocalBackend, Any]:
    """Return the model in this process, and its tokenizer. Raises ValueError where it cannot be loaded."""
    classifier, tokenizer = load_classifier(
        options.model,
        device=options.device,
        dtype=options.dtype,
        padding_side=None if options.padding == "auto" else options.padding,
        revision=options.revision,
        trust_remote_code=options.trust_remote_code,
    )
    if options.separator and classifier.trunk is None:
        raise ValueError(f"model {options.model!r} scores whole texts only; separator needs a causal trunk")
    scorer = Scorer(
        classifier,
        label=label,
        device=pick_device(options.device),
        batch_size=options.batch_size,
        offload=options.placement == "offload",
    )
    return LocalBackend(scorer), tokenizer


def reach_server(options: RewardModel, url: str, label: int) -> tuple[ServerBackend, int]:
    """Return the server as a backend, and how many tokens it reads (0: it does not say).

    Raises ServerLost or ValueError where it does not answer as a vLLM server does.
    """
    server = RewardServer(url, timeout=options.timeout, retries=options.retries)
    model, max_tokens = server.served_model()
    return ServerBackend(server, model, options, label), max_tokens


def lowest(*limits: int) -> int:
    """Return the lowest limit; 0 means no limit."""
    return min((limit for limit in limits if limit), default=0)


class LocalBackend:
    """Scores computed in this process."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer

    def score(self, pairs: Sequence[Pair], texts: Sequence[Encoded]) -> list[tuple[float, ...] | str]:
        """Return the log-odds at each text's positions."""
        return list(self.scorer.score(texts)) if texts else []


class ServerBackend:
    """Scores computed by a vLLM server, `batch_size` texts a request. After a failure the remaining requests are not
    sent: they would wait for the same server."""

    def __init__(self, server: RewardServer, model: str, options: RewardModel, label: int) -> None:
        self.server = server
        self.model = model
        self.options = options
        self.label = label

    def score(self, pairs: Sequence[Pair], texts: Sequence[Encoded]) -> list[tuple[float, ...] | str]:
        """Return the log-odds of each text, or the failure that left it without."""
        scores: list[tuple[float, ...] | str] = []
        size = self.options.batch_size
        for start in range(0, len(texts), size):
            batch = slice(start, start + size)
            try:
                scores += [(self._log_odds(logits),) for logits in self._request(pairs[batch], texts[batch])]
            except (ServerLost, ValueError) as error:
                return scores + [str(error)] * (len(texts) - len(scores))
        return scores

    def _request(self, pairs: Sequence[Pair], texts: Sequence[Encoded]) -> list[list[float]]:
        if self.options.route == "classify":
            return self.server.classify(self.model, [text.ids for text in texts])
        prompts = [problem.prompt for problem, _ in pairs]
        plain = [prompt for prompt in prompts if isinstance(prompt, str)]
        if len(plain) < len(prompts):
            raise ValueError("the route /score takes text prompts, and this one is a list of messages; use classify")
        return self.server.score(self.model, plain, [completion for _, completion in pairs])

    def _log_odds(self, logits: Sequence[float]) -> float:
        if self.label >= len(logits):
            raise ValueError(f"the reward server returned {len(logits)} labels; label {self.label} was asked for")
        if len(logits) > 1 and self.options.label is None:
            raise ValueError(f"the reward server's model has {len(logits)} labels; choose one, e.g. label=1")
        if len(logits) == 1 or not all(map(math.isfinite, logits)):
            return logits[self.label] if len(logits) == 1 else math.nan
        others = [z for i, z in enumerate(logits) if i != self.label]
        top = max(others)
        return logits[self.label] - top - math.log(math.fsum(math.exp(z - top) for z in others))

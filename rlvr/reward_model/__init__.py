"""The verifier `reward_model`: a learned model's opinion as the reward. torch is imported when it first scores."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rlvr.types import Problem, Prompt, RunError, Status, Verdict, error

if TYPE_CHECKING:
    from rlvr.reward_model.server import RewardServer
    from rlvr.reward_model.text import Encoded, Renderer

Pair = tuple[Problem, str]
Reduce = Literal["min", "product", "last"]


class Backend(Protocol):
    """What scores: this process or a server. A text's scores are log-odds, or a line that says why there are none."""

    def score(self, pairs: Sequence[Pair], texts: Sequence[Encoded]) -> list[tuple[float, ...] | str]: ...


@dataclass(frozen=True, kw_only=True)
class RewardModel:
    """The score of a sequence-classification model (hub or folder), on the trainer's device or behind a server.

    model: hub name or folder, of an adapter too; with url its tokenizer makes the token ids. revision: branch, tag or
    commit of a hub model; trust_remote_code: run the Python code that a model brings with it.

    url: a vLLM server (http://host:port) that scores instead of this process; route: its /classify (token ids travel),
    or its /score (prompt and completion travel, the server joins them). timeout: seconds for a request of batch_size
    texts; retries: further tries of it.

    device, dtype: as the policy's. placement: the weights stay beside the policy, or are offloaded to the CPU between
    calls. batch_size: texts in one forward pass. padding: left, right, or the tokenizer's own side.

    chat, system_prompt: how a text is rendered; unless given as `rlvr rm` recorded it, else by the tokenizer's chat
    template where it has one, else prompt, completion and end token. max_tokens: longer texts lose their beginning
    (0: the model's limit); the reason says so.

    mean, std: the score is (log-odds - mean) / std; unless given those that `rlvr rm` measured on held-out
    completions, else 0 and 1. label: the label to score, of a model with several. separator: a process reward model,
    scored at the end of each step that it separates; reduce: the steps' probabilities to their min, product or last.

    threshold: a score of at least this is correct and others incorrect; without it every verdict is partial, so that
    pass@k never counts a model's opinion. A score that is not finite, and a server that fails, are error verdicts; the
    first call raises RunError where the model or the server cannot be used at all.
    """

    model: str = ""
    revision: str | None = None
    trust_remote_code: bool = False
    url: str | None = None
    route: Literal["classify", "score"] = "classify"
    timeout: float = 60.0
    retries: int = 1
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    placement: Literal["beside", "offload"] = "beside"
    batch_size: int = 64
    padding: Literal["auto", "left", "right"] = "auto"
    chat: Literal["auto", "always", "never"] = "auto"
    system_prompt: str | None = None
    max_tokens: int = 0
    mean: float | None = None
    std: float | None = None
    label: str | None = None
    separator: str = ""
    reduce: Reduce = "min"
    threshold: float | None = None

    def __post_init__(self) -> None:
        rules = [
            (bool(self.model), "model: name a hub model or a folder (its tokenizer is needed with url too)"),
            (self.batch_size >= 1, f"batch_size {self.batch_size}: expected at least 1"),
            (self.max_tokens >= 0, f"max_tokens {self.max_tokens}: expected tokens, or 0 for the model's limit"),
            (self.timeout > 0, f"timeout {self.timeout}: expected seconds above 0"),
            (self.retries >= 0, f"retries {self.retries}: expected at least 0"),
            (self.std is None or self.std > 0, f"std {self.std}: expected a number above 0"),
            (not (self.separator and self.url), "separator: steps are scored in this process only; leave out url"),
            (self.url is not None or self.route == "classify", "route score: it is a server's; give its url"),
            (
                not is_folder(self.model) or Path(self.model).is_dir(),
                f"model {self.model!r}: no such folder; `rlvr rm` trains one",
            ),
        ]
        for holds, message in rules:
            if not holds:
                raise ValueError(f"reward_model {message}")
        object.__setattr__(self, "_lock", threading.Lock())
        object.__setattr__(self, "_opened", None)

    @property
    def reads_prompt(self) -> bool:
        """A score is one of prompt and completion together, and means nothing without the prompt."""
        return True

    @property
    def whole_batch(self) -> bool:
        """In this process scores are rounded by what they are computed with, so that callers must not cut a batch."""
        return self.url is None

    def __call__(self, problem: Problem, completion: str) -> Verdict:
        return self.verify_batch([(problem, completion)])[0]

    def verify_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """The verdict of each pair, in order; calls from several threads take turns.

        RunError where the model or the server cannot be used at all, on the first call.
        """
        lock: threading.Lock = self._lock  # type: ignore[attr-defined]
        start = time.perf_counter()
        with lock:
            first = self._opened is None  # type: ignore[attr-defined]
            opened: LoadedRewardModel = open_model(self) if first else self._opened  # type: ignore[attr-defined]
            texts = [self._encode(opened.renderer, problem.prompt, completion) for problem, completion in pairs]
            known = [(pair, text) for pair, text in zip(pairs, texts) if not isinstance(text, str)]
            try:
                scores = iter(opened.backend.score([pair for pair, _ in known], [text for _, text in known]))
            except MemoryError as error:
                # As it is, it would pass for the completion's doing and score 0.
                raise RuntimeError("the reward model ran out of memory; use a smaller batch_size") from error
            found = [text if isinstance(text, str) else next(scores) for text in texts]
            if first and found and all(isinstance(scored, str) for scored in found):
                raise RunError(str(found[0]))
            object.__setattr__(self, "_opened", opened)
        share = (time.perf_counter() - start) / max(len(pairs), 1)
        return [self._verdict(scored, text, opened.mean, opened.std).timed(share) for scored, text in zip(found, texts)]

    def _encode(self, renderer: Renderer, prompt: Prompt, completion: str) -> Encoded | str:
        try:
            if self.separator:
                return renderer.encode_steps(prompt, completion, self.separator)
            return renderer.encode(prompt, completion)
        except ValueError as error:
            return str(error)

    def _verdict(self, scored: tuple[float, ...] | str, text: Encoded | str, mean: float, std: float) -> Verdict:
        if isinstance(scored, str) or isinstance(text, str):
            return error(str(scored))
        if not all(map(math.isfinite, scored)):
            return error(f"the reward model gave {next(s for s in scored if not math.isfinite(s))}")
        value = REDUCE[self.reduce]([sigmoid(s) for s in scored]) if self.separator else scored[0]
        score = (value - mean) / std
        reason = f"its first {text.cut} tokens were cut" if text.cut else ""
        if self.threshold is None:
            return Verdict(Status.PARTIAL, score, reason)
        return Verdict(Status.CORRECT if score >= self.threshold else Status.INCORRECT, score, reason)


REDUCE: dict[str, Any] = {"min": min, "product": math.prod, "last": lambda probabilities: probabilities[-1]}


@dataclass(frozen=True)
class LoadedRewardModel:
    """A reward model that is ready: how texts are rendered, who scores them, and their mean and standard deviation."""

    renderer: Renderer
    backend: Backend
    mean: float
    std: float


class Server:
    """Scores by vLLM's server, `batch_size` texts a request. After a request that failed the others are not tried."""

    def __init__(self, server: RewardServer, served: str, options: RewardModel, label: int) -> None:
        self.server = server
        self.served = served
        self.options = options
        self.label = label

    def score(self, pairs: Sequence[Pair], texts: Sequence[Encoded]) -> list[tuple[float, ...] | str]:
        """The log-odds of each text, or why there are none."""
        from rlvr.reward_model.server import ServerLost

        found: list[tuple[float, ...] | str] = []
        size = self.options.batch_size
        for start in range(0, len(texts), size):
            chosen = slice(start, start + size)
            try:
                found += [(self._log_odds(row),) for row in self._ask(pairs[chosen], texts[chosen])]
            except (ServerLost, ValueError) as error:
                return found + [str(error)] * (len(texts) - len(found))
        return found

    def _ask(self, pairs: Sequence[Pair], texts: Sequence[Encoded]) -> list[list[float]]:
        if self.options.route == "classify":
            return self.server.classify(self.served, [text.ids for text in texts])
        prompts = [problem.prompt for problem, _ in pairs]
        plain = [prompt for prompt in prompts if isinstance(prompt, str)]
        if len(plain) < len(prompts):
            raise ValueError("the route /score takes prompts as text, and this one is in messages; use route=classify")
        return self.server.score(self.served, plain, [completion for _, completion in pairs])

    def _log_odds(self, logits: Sequence[float]) -> float:
        if self.label >= len(logits):
            raise ValueError(f"the reward server gave {len(logits)} labels, and label {self.label} was asked for")
        if len(logits) > 1 and self.options.label is None:
            raise ValueError(f"the reward server's model has {len(logits)} labels; name one with label=1")
        if len(logits) == 1 or not all(map(math.isfinite, logits)):
            return logits[self.label] if len(logits) == 1 else math.nan
        others = [z for i, z in enumerate(logits) if i != self.label]
        top = max(others)
        return logits[self.label] - top - math.log(math.fsum(math.exp(z - top) for z in others))


class Local:
    """Scores in this process."""

    def __init__(self, scorer: Any) -> None:
        self.scorer = scorer

    def score(self, pairs: Sequence[Pair], texts: Sequence[Encoded]) -> list[tuple[float, ...] | str]:
        """The log-odds of each text."""
        return list(self.scorer.score(texts)) if texts else []


def open_model(options: RewardModel) -> LoadedRewardModel:
    """Loads the model, or reaches the server. RunError with one line where that cannot be done."""
    from rlvr.model.device import pick_device
    from rlvr.reward_model.scorer import Scorer, find_label, load_classifier, load_parts, settings_file
    from rlvr.reward_model.server import RewardServer, ServerLost
    from rlvr.reward_model.text import Renderer, token_limit

    try:
        trust = options.trust_remote_code
        parts = load_parts(options.model, revision=options.revision, trust_remote_code=trust)
        tokenizer, config = parts.tokenizer, parts.config
        label = find_label(config.num_labels, config.id2label, options.label, options.model)
        file = settings_file(parts.source)
        recorded: dict[str, Any] = json.loads(Path(file).read_text("utf-8")) if file else {}
        limit = token_limit(tokenizer, config, options.max_tokens or int(recorded.get("max_tokens", 0)))
        backend: Backend
        if options.url is not None:
            server = RewardServer(options.url, timeout=options.timeout, retries=options.retries)
            served = server.served_model()
            limit = least(limit, int(served.get("max_model_len") or 0))
            backend = Server(server, served["id"], options, label)
        else:
            side = None if options.padding == "auto" else options.padding
            classifier, tokenizer = load_classifier(
                options.model,
                device=options.device,
                dtype=options.dtype,
                padding_side=side,
                revision=options.revision,
                trust_remote_code=trust,
            )
            if options.separator and classifier.trunk is None:
                raise ValueError(f"model {options.model!r} scores whole texts only; separator needs a causal trunk")
            backend = Local(
                Scorer(
                    classifier,
                    label=label,
                    device=pick_device(options.device),
                    batch_size=options.batch_size,
                    offload=options.placement == "offload",
                )
            )
        renderer = Renderer(
            tokenizer,
            system_prompt=options.system_prompt if options.system_prompt is not None else recorded.get("system_prompt"),
            chat=recorded.get("chat", "auto") if options.chat == "auto" else options.chat,
            max_tokens=limit,
        )
    except (ValueError, ServerLost) as error:
        raise RunError(f"reward_model: {error}") from error
    # The recorded ones are those of log-odds, not of the steps' probabilities.
    measured = {} if options.separator else recorded
    mean = options.mean if options.mean is not None else float(measured.get("mean", 0.0))
    std = options.std if options.std is not None else float(measured.get("std", 1.0))
    return LoadedRewardModel(renderer, backend, mean, std)


def least(*limits: int) -> int:
    """The lowest of some limits, of which 0 is none."""
    return min((limit for limit in limits if limit), default=0)


def is_folder(name: str) -> bool:
    """Whether a model's name can only be a path: hub names have at most one slash and start with a letter or digit."""
    return name.startswith(("/", ".", "~")) or name.count("/") > 1


def sigmoid(x: float) -> float:
    """1 / (1 + exp(-x)), for any x."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))

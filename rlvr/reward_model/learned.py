"""What verifiers with a learned model share: their options, one batch at a time, and failures that are counted."""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rlvr.core.types import Pair, Prompt, RunError, Status, Verdict, error

if TYPE_CHECKING:
    from .text import Encoded

Scored = tuple[float, ...] | str  # log-odds at each position of a text, or one line that says why there are none


@dataclass(frozen=True, kw_only=True)
class Learned(ABC):
    """A verifier that scores prompt and completion with a model, which the first call loads."""

    NAME: ClassVar[str] = ""  # as it is registered, for messages

    model: str = ""
    revision: str | None = None
    trust_remote_code: bool = False
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    placement: Literal["beside", "offload"] = "beside"
    batch_size: int = 64
    chat: Literal["auto", "always", "never"] = "auto"
    system_prompt: str | None = None
    max_tokens: int = 0
    threshold: float | None = None

    def __post_init__(self) -> None:
        model = self.model
        # Hub names have at most one slash, and begin with a letter or digit.
        is_path = model.startswith(("/", ".", "~")) or model.count("/") > 1
        rules = [
            (bool(model), "model: name a hub model or a folder (with a url too, for its tokenizer)"),
            (self.batch_size >= 1, f"batch_size {self.batch_size}: expected at least 1"),
            (self.max_tokens >= 0, f"max_tokens {self.max_tokens}: expected tokens, or 0 for the model's limit"),
            *self.rules(),
            (not is_path or Path(model).is_dir(), f"model {model!r}: no such folder; `rlvr rm` trains one"),
        ]
        for holds, message in rules:
            if not holds:
                raise ValueError(f"{self.NAME} {message}")
        object.__setattr__(self, "_lock", threading.Lock())
        object.__setattr__(self, "_loaded", None)

    @abstractmethod
    def rules(self) -> list[tuple[bool, str]]:
        """Return (holds, message) for the verifier's own options."""

    @property
    def reads_prompt(self) -> bool:
        return True

    @property
    def whole_batch(self) -> bool:
        """True where the rounding of a score depends on its batch, so that callers must not cut a batch."""
        return True

    def __call__(self, problem: Any, completion: str) -> Verdict:
        return self.verify_batch([(problem, completion)])[0]

    def verify_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Return the verdict of each pair, in order. Calls from several threads take turns.

        The first call raises RunError where the model or the server cannot be used at all.
        """
        lock: threading.Lock = self._lock  # type: ignore[attr-defined]
        start = time.perf_counter()
        with lock:
            first = self._loaded is None  # type: ignore[attr-defined]
            loaded = self._load() if first else self._loaded  # type: ignore[attr-defined]
            texts = [encode(loaded, problem.prompt, completion) for problem, completion in pairs]
            scores = score(loaded, texts)
            if first and scores and all(isinstance(scored, str) for scored in scores):
                raise RunError(str(scores[0]))
            object.__setattr__(self, "_loaded", loaded)
        share = (time.perf_counter() - start) / max(len(pairs), 1)
        return [self._judge(scored, text, loaded).with_seconds(share) for scored, text in zip(scores, texts)]

    @abstractmethod
    def _load(self) -> Any:
        """Return the model ready to score, with `renderer` and `backend`. Raises RunError where that fails."""

    @abstractmethod
    def _verdict(self, log_odds: tuple[float, ...], text: Encoded, loaded: Any) -> Verdict:
        """Return the verdict from the log-odds at a text's positions, which are finite."""

    def _judge(self, scored: Scored, text: Encoded | str, loaded: Any) -> Verdict:
        if isinstance(scored, str) or isinstance(text, str):
            return error(str(scored))
        if not all(map(math.isfinite, scored)):
            return error(f"the model gave {next(s for s in scored if not math.isfinite(s))}")
        return self._verdict(scored, text, loaded)

    def _grade(self, score: float, reason: str, steps: tuple[tuple[int, float], ...] = ()) -> Verdict:
        """Return a verdict with a score, which only a threshold makes correct or incorrect."""
        status = Status.PARTIAL
        if self.threshold is not None:
            status = Status.CORRECT if score >= self.threshold else Status.INCORRECT
        return Verdict(status, score, reason, steps=steps)


def encode(loaded: Any, prompt: Prompt, completion: str) -> Encoded | str:
    """Return a text as it is scored, or why it cannot be."""
    try:
        encoded: Encoded = loaded.renderer.encode(prompt, completion)
    except ValueError as refused:
        return str(refused)
    return encoded


def score(loaded: Any, texts: Sequence[Encoded | str]) -> list[Scored]:
    """Return log-odds for each text, or why there are none; a str among the texts is such a reason already."""
    try:
        scores = iter(loaded.backend.score([text for text in texts if not isinstance(text, str)]))
    except MemoryError as caught:
        # Callers score a MemoryError 0, as if the completion had caused it.
        raise RuntimeError("the reward model ran out of memory; use a smaller batch_size") from caught
    return [text if isinstance(text, str) else next(scores) for text in texts]

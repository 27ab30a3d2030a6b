"""What verifiers with a learned model have in common: batches, one call at a time, and failures that are counted."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr.core.types import Pair, Prompt, RunError, Verdict

if TYPE_CHECKING:
    from rlvr.reward_model.text import Encoded


class Learned(ABC):
    """A verifier that scores prompt and completion with a model, which the first call loads. Subclasses are frozen."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_lock", threading.Lock())
        object.__setattr__(self, "_loaded", None)

    @property
    def reads_prompt(self) -> bool:
        """True: the score is of prompt and completion together."""
        return True

    @property
    def whole_batch(self) -> bool:
        """True in this process, where a score's rounding depends on its batch: callers must not cut one."""
        return True

    def __call__(self, problem: Any, completion: str) -> Verdict:
        return self.verify_batch([(problem, completion)])[0]

    def verify_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Return the verdict of each pair, in order; calls from several threads take turns.

        The first call raises RunError where the model or the server cannot be used at all.
        """
        lock: threading.Lock = self._lock  # type: ignore[attr-defined]
        start = time.perf_counter()
        with lock:
            first = self._loaded is None  # type: ignore[attr-defined]
            loaded = self._load() if first else self._loaded  # type: ignore[attr-defined]
            texts = [self._encoded(loaded, problem.prompt, completion) for problem, completion in pairs]
            scores = self._score(loaded, pairs, texts)
            if first and scores and all(isinstance(score, str) for score in scores):
                raise RunError(str(scores[0]))
            object.__setattr__(self, "_loaded", loaded)
        share = (time.perf_counter() - start) / max(len(pairs), 1)
        return [self._verdict(score, text, loaded).timed(share) for score, text in zip(scores, texts)]

    @abstractmethod
    def _load(self) -> Any:
        """Return the model, ready to score: it has a `backend`. Raises RunError where that fails."""

    @abstractmethod
    def _encode(self, loaded: Any, prompt: Prompt, completion: str) -> Encoded:
        """Return a text as it is scored. Raises ValueError for one that cannot be."""

    @abstractmethod
    def _verdict(self, scored: tuple[float, ...] | str, text: Encoded | str, loaded: Any) -> Verdict:
        """Return the verdict from the log-odds at a text's positions, or from why there are none."""

    def _encoded(self, loaded: Any, prompt: Prompt, completion: str) -> Encoded | str:
        try:
            return self._encode(loaded, prompt, completion)
        except ValueError as error:
            return str(error)

    def _score(
        self, loaded: Any, pairs: Sequence[Pair], texts: Sequence[Encoded | str]
    ) -> list[tuple[float, ...] | str]:
        """Return log-odds for each text, or why there are none; a str among the texts is such a reason already."""
        encoded = [(pair, text) for pair, text in zip(pairs, texts) if not isinstance(text, str)]
        try:
            scores = iter(loaded.backend.score([pair for pair, _ in encoded], [text for _, text in encoded]))
        except MemoryError as error:
            # Callers score a MemoryError 0, as if the completion had caused it.
            raise RuntimeError("the reward model ran out of memory; use a smaller batch_size") from error
        return [text if isinstance(text, str) else next(scores) for text in texts]


def check_options(name: str, rules: Sequence[tuple[bool, str]]) -> None:
    """Raise ValueError with the message of the first rule, of (holds, message), that does not hold."""
    for holds, message in rules:
        if not holds:
            raise ValueError(f"{name} {message}")


def common_rules(options: Any) -> list[tuple[bool, str]]:
    """Return the rules of options that all such verifiers have."""
    return [
        (options.batch_size >= 1, f"batch_size {options.batch_size}: expected at least 1"),
        (options.max_tokens >= 0, f"max_tokens {options.max_tokens}: expected tokens, or 0 for the model's limit"),
    ]


def folder_rule(model: str, advice: str) -> tuple[bool, str]:
    """Return the rule that a model given as a path exists."""
    return not is_folder(model) or Path(model).is_dir(), f"model {model!r}: no such folder{advice}"


def is_folder(name: str) -> bool:
    """Return whether a name must be a path: hub names have at most one slash and start with a letter or digit."""
    return name.startswith(("/", ".", "~")) or name.count("/") > 1

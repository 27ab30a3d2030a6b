"""The verifier `exact`: text equal to the reference."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Any

from rlvr.core.registry import register
from rlvr.core.types import Verdict, correct, incorrect

from .extract.answer import Part, excerpt, read_answer, reference_text, without_answer
from .runner.base import ReferenceVerifier


@register("exact")
@dataclass(frozen=True, kw_only=True)
class ExactVerifier(ReferenceVerifier[list[str]]):
    """Whether the completion is the reference's text.

    The reference is text, a number, or a list of accepted texts. extract: what is compared: the completion after its
    thinking (all), its last line (last_line), a marked or boxed answer (marked), or a boxed one (strict). case: case
    counts. strip: white space at the ends, the length of white space and a full stop at the end do not count.
    Characters that are the same in the Unicode form NFKC are equal.
    """

    extract: Part = "all"
    case: bool = False
    strip: bool = True

    def judge(self, accepted: list[str], completion: str) -> Verdict:
        answer = read_answer(completion, self.extract)
        if answer.text is None:
            return without_answer(completion, answer)
        said = self._normalize(answer.text)
        if any(said == self._normalize(text) for text in accepted):
            return correct(excerpt(answer.text.strip()))
        return incorrect("differs from the reference", excerpt(answer.text.strip()))

    def read_reference(self, reference: Any) -> list[str]:
        """Return the accepted texts. Raise ValueError unless they are text or numbers, at least one."""
        many = list(reference) if isinstance(reference, (list, tuple)) else [reference]
        if not many:
            raise ValueError("an empty list as reference; expected at least one accepted text")
        return [reference_text(one) for one in many]

    def _normalize(self, text: str) -> str:
        text = unicodedata.normalize("NFKC", text)
        if self.strip:
            text = " ".join(text.split())
            text = text[:-1] if text.endswith(".") and not text.endswith("..") else text
        return text if self.case else text.casefold()

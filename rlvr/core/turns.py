"""The turns of a rollout with an environment, and the replies between them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reply:
    """What an environment says to the model between two of its turns.

    text: what the model reads; the chat template frames it. role: of the chat message. reward: for the turn before it,
    added to that of the verdict. void: that turn had neither a call nor an answer; `rollout.mask_void` leaves its
    tokens out of training. calls, failed: number of tool calls that it answers, and how many the model got wrong.
    payload: (start, end) of parts of `text`. If the reply is too long only they are cut, so that the marks around them
    stay whole; without them the text is cut at its end.
    """

    text: str
    role: str = "tool"
    reward: float = 0.0
    void: bool = False
    calls: int = 0
    failed: int = 0
    payload: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a rollout with an environment: the model's (role "assistant"), or a reply to it (its role).

    length: number of its token ids in the completion; a reply includes the template's frame. reward, void: of a turn of
    the model, taken from the reply to it. calls, failed: of a reply.
    """

    role: str
    text: str
    length: int
    reward: float = 0.0
    void: bool = False
    calls: int = 0
    failed: int = 0

    @property
    def sampled(self) -> bool:
        """Whether the model sampled these tokens. Only they are ever trained on."""
        return self.role == "assistant"

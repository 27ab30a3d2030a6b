"""The turns of a rollout with an environment, and the replies between them. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reply:
    """What an environment says to the model between two of its turns.

    text: as the model reads it; the chat template, or nothing, is put around it. role: of the chat message. reward: for
    the turn that it answers, added to that of the verdict. void: that turn held neither a call nor an answer; with
    `rollout.mask_void` its tokens are not trained on. calls, failed: calls of tools that it answers, how many of them
    failed by the model's doing. payload: (start, end) of parts of `text`, in order; of a reply that is too long only
    they are cut, so that the marks around them stay whole. Without them the text is cut at its end.
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

    length: how many of the completion's token ids it has; what the chat template puts around a reply belongs to the
    reply. reward and void: of a turn of the model, from the reply to it. calls and failed: of a reply.
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

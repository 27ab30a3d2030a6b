"""What other programs pass: prompts and completions as chat messages, references as data sets store them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.core.types import Prompt

# Names under which messages hold what was thought, apart from their content.
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")


def messages(prompt: Prompt) -> list[dict[str, str]]:
    """Return a prompt as chat messages."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [{"role": message["role"], "content": message["content"]} for message in prompt]


def read_prompt(prompt: Any) -> Prompt:
    """Return a prompt of another program: a text, or messages with role and the text of their content."""
    given = plain(prompt)
    if isinstance(given, str):
        return given
    if not isinstance(given, list | tuple) or not all(isinstance(one, Mapping) and "role" in one for one in given):
        raise TypeError(f"a prompt is {given!r:.80}; expected a text or chat messages")
    return [{"role": one["role"], "content": _parts(one.get("content"))[0]} for one in given]


def said(completion: Any) -> str:
    """Return what the model said: a text; of a message its text; of messages that of the last one of the assistant.

    Content is a text, null, or a list of parts, of which those of text count. Thinking that was cut off (a field of the
    message, or parts of it) is put back between its tags. Raise TypeError for anything else.
    """
    if isinstance(completion, str):
        return completion
    given = [completion] if isinstance(completion, Mapping) else completion
    if not isinstance(given, Sequence) or not all(isinstance(message, Mapping) for message in given):
        raise TypeError(f"a completion is {completion!r:.80}; expected a text, a chat message or a list of them")
    spoken = [message for message in given if message.get("role") == "assistant"]
    if not spoken:
        return ""
    last = spoken[-1]
    thought = next((last[name] for name in _THOUGHTS if isinstance(last.get(name), str)), "")
    text, parts = _parts(last.get("content"))
    return with_thinking(text, thought or parts)


def with_thinking(text: str, thought: str | None) -> str:
    """Return a text with the thinking before it between its tags; where nothing follows, it is not closed."""
    if not thought or not thought.strip():
        return text
    opened = f"<think>\n{thought.strip()}\n"
    return f"{opened}</think>\n\n{text.lstrip()}" if text else opened


def plain(value: Any) -> Any:
    """Return a reference with arrays as lists, and the numbers and texts of numpy as Python's, at any depth.

    Parquet files and data frames give such values; verifiers read what JSON gives.
    """
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value)) if type(value) in (list, tuple) else value
    if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        return plain(value.tolist())
    return value


def _parts(content: Any) -> tuple[str, str]:
    """Return the text of a message's content, and what was thought in it."""
    if content is None or isinstance(content, str):
        return content or "", ""
    if not isinstance(content, Sequence) or not all(isinstance(part, str | Mapping) for part in content):
        raise TypeError(f"the content of a message is {content!r:.80}; expected a text or a list of parts")
    texts, thoughts = [], []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif part.get("type", "text") in ("text", "output_text"):
            texts.append(str(part.get("text") or ""))
        elif part["type"] in ("thinking", "reasoning"):
            thoughts.append(str(part.get(part["type"]) or ""))
    return "".join(texts), "\n".join(filter(None, thoughts))

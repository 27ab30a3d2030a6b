"""Settings of models that an OpenAI-compatible server holds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from rlvr.config.group import ADVANCED, Group, Rules, Used
from rlvr.config.quantities import POSITIVE, SECONDS, WORKERS
from rlvr.files.urls import KEY_VARIABLE, is_plain

WITH_URL = Used(lambda config: config.url is not None, "with --url")
WITHOUT_URL = Used(lambda config: config.url is None, "without --url")


def renders_here(config: Any) -> bool:
    """Return whether prompts become token ids in this process: the model is loaded here, or its tokenizer is."""
    return config.url is None or config.tokenizer is not None


@dataclass(frozen=True)
class ServedSettings(Group):
    """A model that is asked over HTTP."""

    url: str | None = None
    """OpenAI-compatible server that holds the model (http://HOST:PORT/v1); --model is its name there. None: load it."""
    api: Annotated[Literal["chat", "completions"], WITH_URL] = "chat"
    """Route to ask: chat sends messages; completions sends text, or token ids with --tokenizer."""
    concurrency: Annotated[int, WORKERS, WITH_URL] = 32
    """Requests that are under way at once; each is for one completion."""
    tokenizer: Annotated[str | None, WITH_URL] = None
    """Hub name or folder of the served model's tokenizer, for --api completions: prompts are rendered and encoded here,
    as those of a model that is loaded. None: by the server."""
    key_env: Annotated[str, WITH_URL, ADVANCED] = KEY_VARIABLE
    """Environment variable that holds the server's key, if it wants one; the key itself is written nowhere."""
    retry_seconds: Annotated[float, POSITIVE, WITH_URL, ADVANCED] = 300.0
    """Seconds in which a request that failed (429, 5xx, timeouts, dropped connections) is sent again, from its first
    failure on. After that it is lost: its answer is missing until the same command is run again."""
    request_seconds: Annotated[float, SECONDS, WITH_URL, ADVANCED] = 600.0
    """Seconds without a byte of the response after which a request has failed."""
    request_option: Annotated[tuple[str, ...], WITH_URL, ADVANCED] = ()
    """Further fields of each request, as key=JSON (such as reasoning_effort='"low"')."""
    tool_role: Annotated[Literal["tool", "user"], WITH_URL, ADVANCED] = "tool"
    """Role of tools' replies in chat messages; user for servers that take tool only after a call of their own form."""

    def rules(self, at: str) -> Rules:
        """Return rules about the URL, the tokenizer's route, and the name of the key's variable."""
        return [
            *super().rules(at),
            (self.url is None or is_plain(self.url), f"{at}url: {URL_EXPECTED}"),
            (
                self.tokenizer is None or self.api == "completions",
                f"{at}tokenizer is read by {at}api completions: {at}api chat sends messages; leave it out",
            ),
            (self.tokenizer is None or bool(self.tokenizer.strip()), f"{at}tokenizer is empty; leave it out"),
            (
                re.fullmatch(r"[A-Za-z_]\w*", self.key_env) is not None,
                f"{at}{'key-env' if at.startswith('--') else 'key_env'}: expected the name of an environment variable, "
                "such as OPENAI_API_KEY, and never the key",
            ),
        ]


URL_EXPECTED = "expected http://HOST:PORT/v1, or https, without a user or password (a key is read from the environment)"

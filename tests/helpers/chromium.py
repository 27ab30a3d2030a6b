"""A page in a headless Chromium, driven over its debugging pipe (the Chrome DevTools Protocol). No network."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--remote-debugging-pipe",
    "--disable-dev-shm-usage",
    "--no-first-run",
)


class Navigated(RuntimeError):
    """The page was left while it was asked."""


class Page:
    """One tab. `call` sends a command of the protocol and returns its result."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers, self._number, self._read = commands, answers, 0, b""
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.requested: list[str] = []
        self.call("Page.enable")
        self.call("Network.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("method") == "Network.requestWillBeSent":
                self.requested.append(answer["params"]["request"]["url"][:200])
            if answer.get("id") == self._number:
                if "error" in answer:
                    kind = Navigated if "navigated" in answer["error"]["message"] else RuntimeError
                    raise kind(f"{method}: {answer['error']}")
                return answer["result"]

    def _next(self) -> Any:
        while b"\0" not in self._read:
            found = os.read(self._answers, 1 << 20)
            if not found:
                raise RuntimeError("Chromium has ended")
            self._read += found
        line, _, self._read = self._read.partition(b"\0")
        return json.loads(line)

    def resize(self, width: int, height: int, *, scheme: str = "light") -> None:
        """Set the size of the page in CSS pixels, and prefers-color-scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def load(self, path: Path, hash: str = "") -> None:
        """Load a file and wait until it is loaded."""
        self.visit(path.resolve().as_uri() + hash)

    def visit(self, uri: str) -> None:
        """Load a page and wait until it is loaded."""
        self.call("Page.navigate", url="about:blank")
        self.until("location.href === 'about:blank' && document.readyState === 'complete'")
        self.requested.clear()
        self.call("Page.navigate", url=uri)
        self.until(f"location.href === {json.dumps(uri)} && document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript, awaited where it is a promise."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def until(self, expression: str, seconds: float = 60.0) -> Any:
        """Return the value of an expression as soon as it is true. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with suppress(Navigated):  # another page is on its way
                if value := self.evaluate(expression):
                    return value
            time.sleep(0.02)
        raise TimeoutError(expression)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


def above(descriptor: int, least: int) -> int:
    """Return a descriptor of the same file with a number from `least` on, and close the given one."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, least)
    os.close(descriptor)
    return moved


@contextmanager
def open_page() -> Iterator[Page]:
    """Start Chromium with one empty page, and end it."""
    assert PROGRAM is not None
    to_child, commands, answers, from_child = (above(pipe, 20) for pipe in (*os.pipe(), *os.pipe()))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The protocol's pipes are descriptors 3 and 4.
        shell = f'exec 8<&{to_child} 9>&{from_child}; exec 3<&8 4>&9; exec "$@"'
        process = subprocess.Popen(
            ["bash", "-c", shell, "chromium", PROGRAM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_child, from_child),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_child)
        os.close(from_child)
        try:
            yield Page(commands, answers)
        finally:
            os.close(commands)
            os.close(answers)
            process.terminate()
            process.wait(20)

"""Proofs in Lean 4 by a server: the HTTP interface of the Kimina Lean server (`POST /verify`), a REPL behind it.

One text holds the statement, the theorem and the comparison (`lean_files.whole_file`), which one process elaborates.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

from rlvr.http import JSONClient, RequestRefused, ServerLost, UnexpectedResponse
from rlvr.printable import in_one_line
from rlvr.types import Verdict, bad_reference, error, limit, timeout
from rlvr.verifiers.proof import lean_files as files
from rlvr.verifiers.proof.lean_files import AXIOMS, Message
from rlvr.verifiers.proof.statement import Statement

KEY = "RLVR_LEAN_API_KEY"  # in the environment: sent as a bearer token
_PATH = "/verify"
_SCHEMA = "the Kimina Lean server's"
_KEPT = 4096
_SLACK = 30.0  # seconds beyond the proof's own time: the server's queue and imports


class Answer:
    """A server's answer on one text: its messages, or what it failed of.

    failure: "" where the text was elaborated. slow: whether the failure is the server's time limit.
    """

    def __init__(self, messages: Sequence[Message], failure: str = "", slow: bool = False) -> None:
        self.messages, self.failure, self.slow = list(messages), failure, slow


class LeanServer:
    """A server at `url`. seconds: time of one proof; axioms: names allowed beside `lean_files.AXIOMS`."""

    def __init__(self, url: str, seconds: float, axioms: Sequence[str] = (), slack: float = _SLACK) -> None:
        self._settings = (url, seconds, tuple(axioms), slack)
        self._seconds = seconds
        self._allowed = (*AXIOMS, *axioms)
        self._client = JSONClient(
            url, name="Lean server", timeout=seconds + slack, retries=3, api_key=os.environ.get(KEY) or None
        )
        self._lock = threading.Lock()
        self._proven = False
        self._sound: dict[Statement, str] = {}

    def __reduce__(self) -> tuple[type[LeanServer], tuple[object, ...]]:
        return LeanServer, self._settings

    def missing(self) -> str:
        """Return one line that says why the server cannot be used, or "", once it has judged known proofs rightly."""
        with self._lock:
            if not self._proven:
                why = self._probe()
                self._proven = not why
                return why
        return ""

    def _probe(self) -> str:
        for right, block in files.PROBES:
            verdict = self._verdict(files.PROBE, block)
            if isinstance(verdict, Verdict) and verdict.correct == right and verdict.score is not None:
                continue
            if isinstance(verdict, Verdict) and verdict.correct:
                return f"the Lean server {self._client.url} has not refused a wrong proof"
            why = verdict.reason if isinstance(verdict, Verdict) else verdict
            return f"the Lean server {self._client.url} has not accepted a right proof: {in_one_line(why)}"
        return ""

    def judge(self, statement: Statement, block: str) -> Verdict:
        """Return the verdict on a block of `lean_script.tactic_block`.

        Where the server fails on it, the known proofs tell whose doing that is: *limit* or *timeout* where they pass,
        else *error*.
        """
        verdict = self._verdict(statement, block)
        if isinstance(verdict, Verdict):
            if verdict.status == "incorrect" and (why := self._unsound(statement)):
                return bad_reference(f"Lean refuses the statement: {why}")
            return verdict
        if self._probe():
            return error(in_one_line(verdict))
        refused = timeout if "timed out" in verdict else limit
        return refused(f"the Lean server failed on this proof, and not on others: {in_one_line(verdict)}")

    def _unsound(self, statement: Statement) -> str:
        """Return what Lean says against the statement, "" where it elaborates; asked once for each statement."""
        if statement not in self._sound:
            try:
                answer = self._ask(files.trusted_file(statement))
            except (ServerLost, RequestRefused, UnexpectedResponse):
                return ""
            if answer.failure:
                return ""
            if len(self._sound) >= _KEPT:
                self._sound.clear()
            self._sound[statement] = files.first_error(answer.messages)
        return self._sound.get(statement, "")

    def _verdict(self, statement: Statement, block: str) -> Verdict | str:
        """Return the verdict, or what the server failed of."""
        code = files.new_code()
        try:
            answer = self._ask(files.whole_file(statement, block, code))
        except (ServerLost, RequestRefused, UnexpectedResponse) as failed:
            return str(failed)
        if answer.slow:
            return timeout(answer.failure)
        return answer.failure or files.judge(answer.messages, code, self._allowed)

    def _ask(self, text: str) -> Answer:
        name = files.new_code()
        body = {"codes": [{"custom_id": name, "proof": text}], "timeout": max(1, round(self._seconds))}
        answer = self._client.post(_PATH, body, idempotent=True)
        return self._client.read(_PATH, answer, lambda found: _read(found, name), _SCHEMA)


def _read(answer: Any, name: str) -> Answer:
    """Return what an answer says of the text `name`. Raises ValueError, TypeError or LookupError for another form."""
    (result,) = answer["results"]
    if result["custom_id"] != name:
        raise ValueError("an answer to another text")
    if failed := result.get("error"):
        text = in_one_line(str(failed))[:200]
        return Answer([], text, "timed out" in text)
    response = result["response"]
    if "message" in response:
        return Answer([], in_one_line(str(response["message"]))[:200])
    messages = [_message(item) for item in response.get("messages") or []]
    if response.get("sorries"):
        messages.append(Message("error", "the proof uses sorry"))
    return Answer(messages)


def _message(item: Any) -> Message:
    severity, data = item["severity"], item["data"]
    if not isinstance(severity, str) or not isinstance(data, str):
        raise ValueError("a message without a text")
    return Message(severity, data)

"""A program and a server that speak as Lean does, and judge a few known blocks of tactics.

As a script, with the standard library alone, it is `lean`; `Kimina` answers `POST /verify`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

RIGHT = ("right", "exact fun _ _ h => h.1")


def block_of(text: str) -> str:
    found = re.search(r":= \(by\n(.*?)\n\)\n", text, re.DOTALL)
    return found.group(1).strip() if found else ""


def message(severity: str, data: str) -> dict:
    place = {"line": 1, "column": 0}
    return {"severity": severity, "data": data, "pos": place, "endPos": None, "kind": "[anonymous]", "caption": ""}


def elaborated(text: str) -> list[dict]:
    """Return the messages on a text up to the comparison."""
    block = block_of(text)
    if "nosuch" in text:
        return [message("error", "unknown identifier 'nosuch'")]
    if not block or block in (*RIGHT, "other", "silent", "kernel") or block.startswith("uses "):
        return []
    if block == "sorry":
        return [message("warning", "declaration uses 'sorry'")]
    if block == "forged":
        return [message("information", "'RlvrCheck.n0' does not depend on any axioms")]
    return [message("error", "type mismatch\n  h.2\nhas type q")]


def compared(block: str, text: str) -> list[dict]:
    """Return the messages on the comparison, whose name is in `text`."""
    name = re.search(r"#print axioms (\S+)", text)
    if name is None or block in ("silent", "forged"):
        return []
    if block == "other":
        return [message("error", "type mismatch: RlvrSolution.goal"), message("information", f"'{name[1]}' unknown")]
    names = axioms_of(block)
    if names:
        return [message("information", f"'{name[1]}' depends on axioms: [" + ",\n ".join(names) + "]")]
    return [message("information", f"'{name[1]}' does not depend on any axioms")]


def axioms_of(block: str) -> list[str]:
    if block == "sorry":
        return ["sorryAx"]
    return block.removeprefix("uses ").split() if block.startswith("uses ") else []


def misbehave(block: str) -> None:
    """Do what a hostile block does to the process that elaborates it."""
    if block == "loop":
        while True:
            pass
    if block == "grow":
        held = []
        while True:
            held.append(bytearray(1 << 24))
    if block == "crash":
        os.abort()
    if block == "talk":
        while True:
            print("x" * 100_000)
    if block == "garbage":
        print('{"severity": 3}\n[1]\nnull\n{"data": "x"}\n' + "[" * 5000)
        sys.exit(1)


def main(arguments: list[str]) -> int:
    """Compile a module as `lean --json` does, or replay one."""
    if "--run" in arguments:
        program, code, compiled = arguments[arguments.index("--run") + 1 :]
        block = Path(compiled).read_text(encoding="utf-8")
        if block == "kernel" or "Environment.replay" not in Path(program).read_text(encoding="utf-8"):
            print("uncaught exception: (kernel) declaration type mismatch", file=sys.stderr)
            return 1
        print(f"{code} #[{', '.join(axioms_of(block))}]")
        return 0
    text = Path(arguments[-1]).read_text(encoding="utf-8")
    block = block_of(text)
    misbehave(block)
    library = Path(os.environ["LEAN_PATH"].split(":", maxsplit=1)[0], "RlvrSolution.olean")
    messages = elaborated(text)
    if "import RlvrSolution" in text:
        messages += compared(library.read_text(encoding="utf-8"), text)
    for item in messages:
        print(json.dumps(item, ensure_ascii=False))
    failed = any(item["severity"] == "error" for item in messages)
    if not failed:
        Path(arguments[arguments.index("-o") + 1]).write_text(block, encoding="utf-8")
    return int(failed)


class Kimina:
    """A server on 127.0.0.1. `texts` holds what it was asked; `forms` {block: body} answers in another form.

    A form is an HTTP status, bytes, a dict of the result's own, or "close". "*": for every text.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.keys: list[str | None] = []
        self.forms: dict[str, object] = {}
        kimina = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                (item,) = request["codes"]
                kimina.texts.append(item["proof"])
                kimina.keys.append(self.headers["Authorization"])
                kimina.answer(self, item)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()

    def answer(self, handler: BaseHTTPRequestHandler, item: dict) -> None:
        text = item["proof"]
        block = block_of(text)
        form = self.forms.get("*", self.forms.get(block)) if block or "*" in self.forms else None
        if form == "close":
            handler.close_connection = True
            return
        messages = elaborated(text) + (compared(block, text) if block else [])
        for shown in messages:
            shown["severity"] = shown["severity"].replace("information", "info")
        response = {"env": 1, "messages": messages, "time": 0.1}
        if block == "sorry":
            response["sorries"] = [{"goal": "⊢ False", "pos": {"line": 1, "column": 0}}]
        result = {"custom_id": item["custom_id"], **(form if isinstance(form, dict) else {"response": response})}
        body = form if isinstance(form, bytes) else json.dumps({"results": [result]}).encode()
        handler.send_response(form if isinstance(form, int) else 200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A server that answers `POST /verify` as the Kimina Lean server does, and judges as `lean_stand_in`."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.helpers.lean_stand_in import block_of, compare, elaborate


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
        messages = elaborate(text) + (compare(block, text) if block else [])
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

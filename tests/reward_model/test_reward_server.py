"""The verifier reward_model against a server with vLLM's routes: the same scores, and failures that are counted."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from rlvr.core.types import Problem, RunError, Status
from rlvr.reward_model import RewardModel
from rlvr.reward_model.scorer import Classifier, load_classifier
from rlvr.reward_model.text import Encoded
from rlvr.verifiers.runner import Runner, VerifierErrors
from tests.helpers.reward_models import PAIRS, scores


class FakeVLLM(BaseHTTPRequestHandler):
    """vLLM's /v1/models and /classify; `server.mood` decides how it behaves."""

    def log_message(self, *_):
        """Keeps the test's output quiet."""

    def do_GET(self):
        self.reply({"object": "list", "data": [{"id": "served", "root": "somewhere", "max_model_len": 64}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append((self.path, body))
        mood = self.server.moods.pop(0) if self.server.moods else "well"
        if mood == "slow":
            time.sleep(2)
        if mood == "failing":
            return self.reply({"error": "engine is dead"}, 500)
        if mood == "strange":
            return self.reply({"scores": [1]})
        texts = [Encoded(tuple(ids), (len(ids) - 1,)) for ids in body["input"]]
        with torch.inference_mode():
            logits = self.server.classifier.logits(texts).tolist()
        logits = [[None]] * len(texts) if mood == "nan" else logits
        rows = [{"index": i, "label": None, "probs": p, "num_classes": len(p)} for i, p in enumerate(logits)]
        self.reply({"id": "x", "object": "list", "created": 0, "model": "served", "data": rows[::-1], "usage": {}})
        return None

    def reply(self, content, status: int = 200):
        text = json.dumps(content).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
        except ConnectionError:
            pass  # the client has given up


@contextmanager
def serving(classifier: Classifier):
    """A server on a free port, and its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeVLLM)
    server.daemon_threads = True
    server.classifier, server.moods, server.bodies = classifier, [], []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def remote(folder):
    """A server with the model of `folder`, and its URL."""
    with serving(load_classifier(folder, device="cpu", dtype="float32")[0]) as pair:
        yield pair


def test_a_server_scores_as_this_process_does(folder, remote):
    """/classify gets the very token ids, in requests of batch_size, and raw logits are asked for."""
    server, url = remote
    verifier = RewardModel(model=folder, url=url, batch_size=4, timeout=60)
    assert scores(verifier) == pytest.approx(scores(RewardModel(model=folder, device="cpu")), abs=1e-5)
    assert [len(body["input"]) for _, body in server.bodies] == [4, 4, 1]
    assert all(body["use_activation"] is False and body["model"] == "served" for _, body in server.bodies)


def test_a_dead_server_is_one_line_at_the_first_call(folder):
    """Nothing listens there; through the runner as well, without a verdict."""
    with serving(None) as (_, url):
        pass
    for judge in (RewardModel(model=folder, url=url).verify_batch, Runner(RewardModel(model=folder, url=url)).verify):
        with pytest.raises(
            RunError, match=r"reward server http://127\.0\.0\.1:\d+/v1/models is unreachable: "
        ) as caught:
            judge(PAIRS)
        assert "\n" not in str(caught.value)


def test_a_server_that_dies_later_gives_counted_errors(folder):
    """No score, never a 0, one try for the whole batch; the budget then stops the run."""
    with serving(load_classifier(folder, device="cpu", dtype="float32")[0]) as (_, url):
        runner = Runner(RewardModel(model=folder, url=url, batch_size=2, timeout=60), error_budget=0.02)
        assert all(verdict.score is not None for verdict in runner.verify(PAIRS))
    fresh = [(problem, completion + "1") for problem, completion in PAIRS]
    verdicts = runner.verifier.verify_batch(fresh)
    assert {verdict.status for verdict in verdicts} == {Status.ERROR}
    assert {verdict.score for verdict in verdicts} == {None}
    many = [(Problem(f"m{i}", "1+1="), "2" * (i % 50)) for i in range(100)]
    with pytest.raises(VerifierErrors, match="is unreachable"):
        runner.verify(many)


def test_a_slow_server_gives_errors_after_its_time(folder, remote):
    """Both tries run out; the other requests of that call are not waited for; the next call is answered."""
    server, url = remote
    verifier = RewardModel(model=folder, url=url, batch_size=1, timeout=1.0)
    assert verifier(*PAIRS[0]).score is not None
    server.moods += ["slow", "slow"]
    start = time.perf_counter()
    verdicts = verifier.verify_batch(PAIRS)
    assert time.perf_counter() - start < 20
    assert {verdict.score for verdict in verdicts} == {None}
    assert "timed out after 1 s" in verdicts[0].reason
    assert verifier(*PAIRS[0]).score is not None


def test_a_server_is_asked_again_after_a_failure(folder, remote):
    """A 500 once: the second attempt succeeds. After two it is an error that quotes the server."""
    server, url = remote
    server.moods += ["failing"]
    verifier = RewardModel(model=folder, url=url, timeout=60)
    assert None not in scores(verifier)
    server.moods += ["failing", "failing"]
    assert 'returned 500: {"error": "engine is dead"}' in verifier(*PAIRS[0]).reason


def test_answers_of_another_form_and_null_are_errors(folder, remote):
    """null is how JSON writes NaN."""
    server, url = remote
    verifier = RewardModel(model=folder, url=url, timeout=60)
    assert verifier(*PAIRS[0]).score is not None
    server.moods += ["strange", "nan"]
    assert "/classify: response does not follow vLLM's schema" in verifier(*PAIRS[0]).reason
    assert "nan" in verifier(*PAIRS[0]).reason

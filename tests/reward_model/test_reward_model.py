"""The verifier reward_model: scores that depend on the text alone, and failures that are never a silent 0."""

from __future__ import annotations

import dataclasses
import json
import math
import threading
import time
import tomllib
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import EntryPoint

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
)

from rlvr.commands.cli import main
from rlvr.config import Config, EvalConfig, ModelConfig, OptimConfig, RolloutConfig, RunConfig
from rlvr.core.registry import make_verifier
from rlvr.core.types import Problem, RunError, Status, Task
from rlvr.launch import launch
from rlvr.model.load.tiny import tiny_tokenizer
from rlvr.reward_model import RewardModel
from rlvr.reward_model.process import ProcessRewardModel
from rlvr.reward_model.scorer import Classifier, load_classifier, log_odds
from rlvr.reward_model.text import Encoded, Renderer
from rlvr.verifiers.runner import Runner, VerifierErrors
from tests.helpers.files import ROOT
from tests.helpers.reward_models import ALPHABET, PAIRS, save_model, scores, tiny_config

TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}\n{% endfor %}"


def test_scores_in_a_batch_equal_scores_one_by_one(folder):
    """Lengths from 6 to 25 tokens, to 1e-5; and the spread is far above that."""
    verifier = RewardModel(model=folder, device="cpu", batch_size=4)
    together = scores(verifier)
    alone = [verifier(problem, completion).score for problem, completion in PAIRS]
    assert together == pytest.approx(alone, abs=1e-5)
    assert max(together) - min(together) > 0.1


def test_a_score_is_transformers_own_logit(folder):
    """Prompt, completion and end token through the model's own forward pass."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = tiny_tokenizer([ALPHABET])
    problem, completion = PAIRS[4]
    ids = [*tokenizer(problem.prompt + completion).input_ids, tokenizer.eos_token_id]
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits.item()
    assert RewardModel(model=folder, device="cpu")(problem, completion).score == pytest.approx(expected, abs=1e-5)


def test_the_padding_token_does_not_matter(folder, tmp_path):
    """A tokenizer without one, and one whose end token pads, score as one that has its own."""
    expected = scores(RewardModel(model=folder, device="cpu"))
    for name, pad in (("none", None), ("eos", "<eos>")):
        tokenizer = tiny_tokenizer([ALPHABET])
        tokenizer.pad_token = pad
        model = Qwen2ForSequenceClassification.from_pretrained(folder)
        model.config.pad_token_id = tokenizer.pad_token_id
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        assert scores(RewardModel(model=str(tmp_path / name), device="cpu")) == pytest.approx(expected, abs=1e-5)


def test_encoders_pool_in_their_own_way(tmp_path):
    """A BERT reads "[CLS] prompt [SEP] completion [SEP]"; batched scores are those one by one, cut texts too."""
    words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *sorted(set(ALPHABET))]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]"
    )
    config = BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=20, num_labels=1, initializer_range=0.3, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    renderer = Renderer(tokenizer, system_prompt=None, chat="auto", max_tokens=20)
    assert tokenizer.convert_ids_to_tokens(renderer.encode("1+", "a").ids) == ["[CLS]", "1", "+", "[SEP]", "a", "[SEP]"]
    verifier = RewardModel(model=str(tmp_path), device="cpu")
    alone = [verifier(problem, completion).score for problem, completion in PAIRS]
    assert scores(verifier) == pytest.approx(alone, abs=1e-5)
    assert len(set(alone)) == len(alone)


def test_two_labels_are_refused_unless_one_is_named(tmp_path):
    """One line at the first call; with a label its log-odds are the score."""
    two = save_model(tmp_path, num_labels=2)
    with pytest.raises(RunError, match=r"has 2 labels .*label=1"):
        RewardModel(model=two, device="cpu").verify_batch(PAIRS)
    with pytest.raises(RunError, match="no label '2'"):
        RewardModel(model=two, device="cpu", label="2").verify_batch(PAIRS)
    by_number, by_name = (scores(RewardModel(model=two, device="cpu", label=label)) for label in ("1", "LABEL_1"))
    other = scores(RewardModel(model=two, device="cpu", label="0"))
    assert by_number == by_name == pytest.approx([-score for score in other], abs=1e-5)


def test_log_odds_by_hand():
    """softmax of (0, ln 3) gives the second label 3/4: odds of 3. With a third label (ln 3) they are 3 / (1 + 3)."""
    two, three = torch.tensor([[0.0, math.log(3)]]), torch.tensor([[0.0, math.log(3), math.log(3)]])
    assert log_odds(two, 1).item() == pytest.approx(math.log(3))
    assert log_odds(three, 1).item() == pytest.approx(math.log(3 / 4))


def test_a_score_that_is_no_number_is_a_counted_error(folder, tmp_path):
    """NaN for a text that holds an a: that verdict alone is an error without a score, and the budget counts it."""
    model = Qwen2ForSequenceClassification.from_pretrained(folder)
    tokenizer = tiny_tokenizer([ALPHABET])
    with torch.no_grad():
        model.model.embed_tokens.weight[tokenizer.convert_tokens_to_ids("a")] = math.nan
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    pairs = [(Problem("0", "1+1="), "2"), (Problem("1", "1+2="), "a3"), (Problem("2", "2+2="), "444")]
    verdicts = RewardModel(model=str(tmp_path), device="cpu").verify_batch(pairs)
    assert [verdict.status for verdict in verdicts] == [Status.PARTIAL, Status.ERROR, Status.PARTIAL]
    assert verdicts[1].score is None
    assert "nan" in verdicts[1].reason
    many = [(Problem(str(i), "1+2="), "a" + "1" * i) for i in range(5)]
    with pytest.raises(VerifierErrors, match=r"gave nan.*5 of 5 verdicts have no score"):
        Runner(RewardModel(model=str(tmp_path), device="cpu"), error_budget=0.02).verify(many)


def test_models_that_cannot_score_are_refused_in_one_line(tmp_path):
    """A causal LM without a head, a folder without a model, no folder at all, no model named."""
    tokenizer = tiny_tokenizer([ALPHABET])
    Qwen2ForCausalLM(tiny_config(tokenizer)).save_pretrained(tmp_path / "causal")
    tokenizer.save_pretrained(tmp_path / "causal")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=r"no weights for score\.weight.*rlvr rm"):
        Runner(RewardModel(model=str(tmp_path / "causal"), device="cpu", label="0")).verify(PAIRS)
    with pytest.raises(RunError, match="not a sequence classifier"):
        RewardModel(model=str(tmp_path / "empty")).verify_batch(PAIRS)
    with pytest.raises(ValueError, match="no such folder"):
        RewardModel(model=str(tmp_path / "nothing"))
    with pytest.raises(ValueError, match="name a hub model or a folder"):
        RewardModel()


@pytest.mark.parametrize(
    "options", [{"batch_size": 0}, {"max_tokens": -1}, {"std": 0.0}, {"timeout": 0.0}, {"retries": -1}]
)
def test_options_that_cannot_work_are_refused(folder, options):
    """When the verifier is made, by the option's name."""
    with pytest.raises(ValueError, match=f"reward_model {next(iter(options))}"):
        RewardModel(model=folder, **options)


def test_more_tokens_than_positions_are_refused(folder):
    """The model has 128."""
    with pytest.raises(RunError, match="max_tokens 129: the reward model reads at most 128"):
        RewardModel(model=folder, max_tokens=129, device="cpu").verify_batch(PAIRS)


def test_scores_are_normalized_as_recorded_or_as_asked(folder, tmp_path):
    """(log-odds - mean) / std, from reward_model.json or from the options, which win."""
    raw = scores(RewardModel(model=folder, device="cpu"))
    save_model(tmp_path)
    (tmp_path / "reward_model.json").write_text(json.dumps({"mean": 0.5, "std": 2.0}))
    recorded = RewardModel(model=str(tmp_path), device="cpu")
    assert scores(recorded) == pytest.approx([(s - 0.5) / 2 for s in raw], abs=1e-5)
    fixed = RewardModel(model=str(tmp_path), device="cpu", mean=0.0, std=1.0)
    assert scores(fixed) == pytest.approx(raw, abs=1e-5)


def test_only_a_threshold_makes_a_verdict_correct(folder):
    """Without one every verdict is partial, so that pass@k never counts a model's opinion; the score stays the same."""
    plain = RewardModel(model=folder, device="cpu").verify_batch(PAIRS)
    assert {verdict.status for verdict in plain} == {Status.PARTIAL}
    bound = sorted(verdict.score for verdict in plain)[4]
    judged = RewardModel(model=folder, device="cpu", threshold=bound).verify_batch(PAIRS)
    assert [v.score for v in judged] == [v.score for v in plain]
    assert [v.correct for v in judged] == [v.score >= bound for v in plain]


@pytest.mark.parametrize("verifier", ["reward_model", "combine"])
def test_lines_without_a_prompt_are_not_graded(folder, tmp_path, capsys, verifier):
    """A score of the completion alone would look like any other."""
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"prompt": "1+1=", "reference": "2", "completion": "2"}\n{"reference": "2", "completion": "2"}\n')
    options = ("parts=reward_model", f"options=reward_model.model={folder}")
    option = (f"model={folder}",) if verifier == "reward_model" else options
    assert main(["grade", "--verifier", verifier, "--verifier-option", *option, "--", str(lines)]) == 2
    assert "line 2: no prompt" in capsys.readouterr().err


def test_long_texts_lose_their_beginning(folder):
    """The score is that of the last tokens, and the reason says how many were cut."""
    classifier, tokenizer = load_classifier(folder, device="cpu", dtype="float32")
    problem, completion = Problem("p", "1234+5678="), "a 12 b 12"
    ids = [*tokenizer(problem.prompt + completion).input_ids, tokenizer.eos_token_id]
    verdict = RewardModel(model=folder, device="cpu", max_tokens=8)(problem, completion)
    with torch.inference_mode():
        expected = classifier.logits([Encoded(tuple(ids[-8:]), (7,))]).item()
    assert verdict.score == pytest.approx(expected, abs=1e-5)
    assert verdict.reason == f"its first {len(ids) - 8} tokens were cut"


def test_a_chat_template_renders_prompt_and_completion(tmp_path):
    """The completion is the assistant's message; a system prompt goes first; messages stay messages."""
    chatty = save_model(tmp_path, chat_template=TEMPLATE)
    verifier = RewardModel(model=chatty, device="cpu", system_prompt="as")
    classifier, tokenizer = load_classifier(chatty, device="cpu", dtype="float32")
    ids = tokenizer("<|system|>as\n<|user|>1+1=\n<|assistant|>a2\n").input_ids
    with torch.inference_mode():
        expected = classifier.logits([Encoded(tuple(ids), (len(ids) - 1,))]).item()
    assert verifier(Problem("p", "1+1="), "a2").score == pytest.approx(expected, abs=1e-5)
    in_messages = Problem("p", [{"role": "user", "content": "1+1="}])
    assert verifier(in_messages, "a2").score == pytest.approx(expected, abs=1e-5)


def test_messages_without_a_template_are_an_error_of_that_pair(folder):
    """The others are scored."""
    pairs = [(Problem("0", [{"role": "user", "content": "1"}]), "2"), PAIRS[0]]
    verdicts = RewardModel(model=folder, device="cpu").verify_batch(pairs)
    assert [verdict.status for verdict in verdicts] == [Status.ERROR, Status.PARTIAL]
    assert "chat template" in verdicts[0].reason


@pytest.mark.parametrize("chat_template", [None, TEMPLATE])
def test_lone_surrogate_is_an_error_of_that_pair(tmp_path, chat_template):
    """In the completion, the prompt, or a message; the others are scored, and the reason names text and character."""
    verifier = RewardModel(model=save_model(tmp_path, chat_template=chat_template), device="cpu")
    pairs = [
        PAIRS[0],
        (PAIRS[0][0], "12\ud800"),
        (Problem("1", "1\udc00="), "2"),
        (Problem("2", [{"role": "user", "content": "\ud83d"}]), "2"),
    ]
    verdicts = verifier.verify_batch(pairs)
    assert [verdict.status for verdict in verdicts] == [Status.PARTIAL, *[Status.ERROR] * 3]
    assert verdicts[1].reason == "the completion: not text in UTF-8: it holds the lone surrogate \\ud800"
    assert [verdict.reason[-6:] for verdict in verdicts[2:]] == ["\\udc00", "\\ud83d"]
    assert all(verdict.reason.startswith("the prompt: ") for verdict in verdicts[2:])


def test_scoring_leaves_the_random_state_alone(folder):
    """Loading and scoring draw nothing from torch's global generator."""
    before = torch.get_rng_state()
    scores(RewardModel(model=folder, device="cpu", placement="offload"))
    assert torch.equal(before, torch.get_rng_state())


def test_offloaded_weights_give_the_same_scores_and_stay_where_they_are(folder):
    """Scores are those of weights that stay on the device; afterwards the tensors are those of before."""
    beside, offloaded = (RewardModel(model=folder, device="cpu", placement=p) for p in ("beside", "offload"))
    assert scores(offloaded) == scores(beside)
    model = offloaded._loaded.backend.classifier.model
    places = [tensor.data_ptr() for tensor in model.state_dict().values()]
    assert scores(offloaded) == scores(beside)
    assert [tensor.data_ptr() for tensor in model.state_dict().values()] == places


def test_a_run_that_it_rewards_resumes_exactly(folder, tmp_path):
    """Four steps, and two and two more, write the same rollouts; pass@k counts no opinion of a model."""
    problems = [Problem(str(i), f"{i}+{i}=") for i in range(24)]
    task = Task("sums", problems[:20], problems[20:], RewardModel(model=folder, device="cpu"))
    config = Config(
        run=RunConfig(out_dir=tmp_path / "whole", steps=4, save_every=2, sample_every=0),
        model=ModelConfig(device="cpu"),
        rollout=RolloutConfig(problems_per_step=2, group_size=4, max_new_tokens=8),
        optim=OptimConfig(lr=1e-3),
        eval=EvalConfig(num_problems=4, samples=1, k=(1,)),
    )
    evaluations = launch(config, task=task)
    assert [record["pass@1"] for record in evaluations] == [0.0, 0.0]
    for steps in (2, 4):
        run = dataclasses.replace(config.run, out_dir=tmp_path / "halves", steps=steps)
        launch(dataclasses.replace(config, run=run), task=task)
    whole, halves = ((tmp_path / name / "rollouts.jsonl").read_bytes() for name in ("whole", "halves"))
    assert whole == halves
    assert len({json.loads(line)["reward"] for line in whole.splitlines()}) > 16


@pytest.mark.parametrize(
    ("name", "kind", "options", "read"),
    [
        ("reward_model", RewardModel, {"threshold": "0.5", "batch_size": "8"}, {"threshold": 0.5, "batch_size": 8}),
        ("process_reward_model", ProcessRewardModel, {"reduce": "product"}, {"reduce": "product", "whole_batch": True}),
    ],
)
def test_an_installed_project_names_it(name, kind, options, read):
    """The entry point is the class, and its options are parsed from text."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["rlvr.verifiers"]
    assert EntryPoint(name, table[name], "rlvr.verifiers").load() is kind
    made = make_verifier(table[name], model="org/name", **options)
    assert {option: getattr(made, option) for option in read} == read
    assert made.reads_prompt


# The verifier reward_model against a server with vLLM's routes: the same scores, and failures that are counted.


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
def serve_classifier(classifier: Classifier):
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
    with serve_classifier(load_classifier(folder, device="cpu", dtype="float32")[0]) as pair:
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
    with serve_classifier(None) as (_, url):
        pass
    for judge in (RewardModel(model=folder, url=url).verify_batch, Runner(RewardModel(model=folder, url=url)).verify):
        with pytest.raises(
            RunError, match=r"reward server http://127\.0\.0\.1:\d+/v1/models is unreachable: "
        ) as caught:
            judge(PAIRS)
        assert "\n" not in str(caught.value)


def test_a_server_that_dies_later_gives_counted_errors(folder):
    """No score, never a 0, one try for the whole batch; the budget then stops the run."""
    with serve_classifier(load_classifier(folder, device="cpu", dtype="float32")[0]) as (_, url):
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

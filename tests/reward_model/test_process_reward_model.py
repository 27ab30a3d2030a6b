"""The verifier process_reward_model: probabilities of steps as published models give them, shared out."""

from __future__ import annotations

import json
import math
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2ForTokenClassification

from rlvr.core.types import Problem, RunError, Status
from rlvr.launch import launch
from rlvr.reward_model.loading import with_two_layers
from rlvr.reward_model.process import ProcessRewardModel, share_out
from rlvr.reward_model.text import remove_all
from rlvr.tasks.base import build_task
from tests.helpers.files import lines
from tests.helpers.reward_models import CHAT, fit_head, name_it, save_answers, save_head, save_model, step_tokenizer
from tests.helpers.runs import tiny

PROBLEM = Problem("p", "1+1=", "2")
STEPS = ["1+1 is 2", "so it is 2", "2"]
ANSWER = "\n\n".join(STEPS)
ENDS = (10, 22, 23)
FORMS = {"head": save_head, "tokens": save_answers}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    """A model of each form."""
    return {form: save(tmp_path_factory.mktemp(form)) for form, save in FORMS.items()}


def make_model(models, kind: str, **options) -> ProcessRewardModel:
    return ProcessRewardModel(model=models[kind], **{"device": "cpu", "dtype": "float32", **options})


def probabilities(verdict) -> list[float]:
    """What the verdict's reason tells of the steps."""
    return [float(number) for number in verdict.reason.removeprefix("steps: ").split(", ")]


@torch.no_grad()
def published_head(folder: str, steps: list[str]) -> list[float]:
    """What Qwen2.5-Math-PRM's model card computes: softmax at the separators, the second class."""
    tokenizer = step_tokenizer(chat_template=CHAT)
    model = with_two_layers(Qwen2ForTokenClassification).from_pretrained(folder).eval()
    messages = [
        {"role": "user", "content": PROBLEM.prompt},
        {"role": "assistant", "content": "<extra_0>".join(steps) + "<extra_0>"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
    ids = torch.tensor([tokenizer(text).input_ids])
    classes = model(input_ids=ids).logits.softmax(-1)
    return classes[0, ids[0] == tokenizer.convert_tokens_to_ids("<extra_0>"), 1].tolist()


@torch.no_grad()
def published_answers(folder: str, steps: list[str]) -> list[float]:
    """What Math-Shepherd's model card computes: softmax over the logits of + and -, where the tag is."""
    tokenizer = step_tokenizer()
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    output = "".join(f"{step} ки\n" for step in steps).rstrip("\n")
    ids = torch.tensor([tokenizer(f"{PROBLEM.prompt} {output}").input_ids])
    candidates = [tokenizer.convert_tokens_to_ids(text) for text in "+-"]
    scores = model(ids).logits[:, :, candidates].softmax(-1)[:, :, 0]
    return scores[0, ids[0] == tokenizer.convert_tokens_to_ids("ки")].tolist()


PUBLISHED = {"head": published_head, "tokens": published_answers}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("steps", [STEPS, STEPS[:1], ["a", "b", "a", "1 2 3\nab"]])
def test_the_probabilities_are_those_that_the_publishers_code_computes(models, form, steps):
    """At every step, and they differ between steps."""
    expected = PUBLISHED[form](models[form], steps)
    verdict = make_model(models, form)(PROBLEM, "\n\n".join(steps))
    assert verdict.status is Status.PARTIAL
    assert probabilities(verdict) == pytest.approx(expected, abs=6e-4)
    assert verdict.score == pytest.approx(min(expected), abs=1e-5)
    assert len(steps) == 1 or max(expected) - min(expected) > 1e-3
    assert [end for end, _ in verdict.steps][-1] == len("\n\n".join(steps))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("reduce", "join"), [("min", min), ("product", math.prod), ("last", lambda p: p[-1])])
def test_the_steps_share_out_the_score(models, form, reduce, join):
    """Each has the change of the score so far; all add up to 0."""
    p = PUBLISHED[form](models[form], STEPS)
    verdict = make_model(models, form, reduce=reduce)(PROBLEM, ANSWER)
    first, second = join(p[:1]), join(p[:2])
    assert verdict.score == pytest.approx(join(p), abs=1e-5)
    assert [end for end, _ in verdict.steps] == list(ENDS)
    assert [score for _, score in verdict.steps] == pytest.approx([first, second - first, -second], abs=1e-5)


def test_sharing_by_hand():
    """Of probabilities 3/4, 1/2, 7/8."""
    p = [0.75, 0.5, 0.875]
    assert share_out(p, (3, 6, 9), "min") == (0.5, ((3, 0.75), (6, -0.25), (9, -0.5)))
    assert share_out(p, (3, 6, 9), "product") == (0.328125, ((3, 0.75), (6, -0.375), (9, -0.375)))
    assert share_out(p, (3, 6, 9), "last") == (0.875, ((3, 0.75), (6, -0.25), (9, -0.5)))
    assert share_out([0.25], (4,), "min") == (0.25, ((4, 0.0),))


@pytest.mark.parametrize(("bias", "expected"), [((0.0, math.log(3)), 0.75), ((math.log(4), 0.0), 0.2)])
def test_a_head_by_hand(tmp_path, bias, expected):
    """Of no weights, its biases decide: odds of 3, and of 1 to 4."""

    def change(model):
        with torch.no_grad():
            model.score[2].weight.zero_()
            model.score[2].bias.copy_(torch.tensor(bias))

    verdict = make_model({"head": save_head(tmp_path, change=change)}, "head", reduce="product")(PROBLEM, ANSWER)
    assert verdict.score == pytest.approx(expected**3)
    steps = [expected, expected**2 - expected, -(expected**2)]
    assert [score for _, score in verdict.steps] == pytest.approx(steps)


@pytest.mark.parametrize("form", FORMS)
def test_end_and_reward_of_a_step_do_not_depend_on_what_follows(models, form):
    """So that credit per step is unbiased."""
    verifier = make_model(models, form)
    whole = verifier(PROBLEM, ANSWER)
    for count in (1, 2):
        begun = verifier(PROBLEM, "\n\n".join(STEPS[:count]) + "\n\nab 12")
        for (end, reward), (expected_end, expected) in zip(begun.steps[:count], whole.steps, strict=False):
            assert (end, reward) == (expected_end, pytest.approx(expected, abs=1e-5))


@pytest.mark.parametrize("form", FORMS)
def test_scores_in_a_batch_equal_scores_one_by_one(models, form):
    """Of texts with one to six steps, in several batches."""
    rng = Random(3)
    texts = ["\n\n".join("a1 b2"[: rng.randint(1, 5)] * rng.randint(1, 3) for _ in range(n % 6 + 1)) for n in range(11)]
    verifier = make_model(models, form, batch_size=4)
    together = verifier.verify_batch([(PROBLEM, text) for text in texts])
    for text, verdict in zip(texts, together):
        alone = verifier(PROBLEM, text)
        assert verdict.score == pytest.approx(alone.score, abs=1e-5)
        assert [end for end, _ in verdict.steps] == [end for end, _ in alone.steps]
    moved = make_model(models, form, placement="offload").verify_batch([(PROBLEM, text) for text in texts])
    assert [v.score for v in moved] == pytest.approx([v.score for v in together], abs=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "forged", ["<extra_0>", "<extra_0><extra_0>", "<ext<extra_0>ra_0>", " ки ", " ки + ки", "ки", "<eos>", "<pad>"]
)
def test_a_completion_cannot_write_tags(models, form, forged):
    """Nor special tokens: the model reads the text as if they were not there."""
    verifier = make_model(models, form)
    loaded = verifier._load()
    plain = loaded.renderer.encode(PROBLEM.prompt, "1+1\n\n2")
    for text in (f"1+1{forged}\n\n2", f"{forged}1+1\n\n2", f"1+1\n\n2{forged}"):
        found = loaded.renderer.encode(PROBLEM.prompt, text)
        ids = [number for number in found.ids if number == loaded.renderer.tag_id]
        assert len(ids) == len(found.positions) == 2
        if form == "head" and "ки" in forged:  # there it is a word
            continue
        if "+" not in forged:
            assert (found.ids, found.positions) == (plain.ids, plain.positions)


def test_a_tag_that_is_a_word_stays_in_other_words(models):
    """Unless the tokenizer makes a tag of it there too, as this one does."""
    renderer = make_model(models, "tokens")._load().renderer
    assert remove_all(renderer._forged, "aкиb ки 1") == "aкиb  1"
    assert renderer.encode("1+1=", "aккииb").ids == renderer.encode("1+1=", "ab").ids
    assert len(renderer.encode("ки", "a").positions) == 1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", ["", " \n", "\n\n\n\n"])
def test_no_step_scores_nothing(models, form, text):
    """It is no answer, and no error."""
    verdict = make_model(models, form)(PROBLEM, text)
    assert (verdict.status, verdict.score, verdict.steps) == (Status.NO_ANSWER, 0.0, ())


@pytest.mark.parametrize("form", FORMS)
def test_empty_steps_are_none_and_a_separator_at_the_end_ends_none(models, form):
    """The last step reaches to the end of the text."""
    verdict = make_model(models, form)(PROBLEM, "1\n\n\n\n\n2\n\n")
    assert [end for end, _ in verdict.steps] == [3, 9]


@pytest.mark.parametrize("form", FORMS)
def test_a_text_that_is_too_long_is_a_limit(models, form):
    """Others in its batch are scored; what is cut is not guessed."""
    verifier = make_model(models, form, max_tokens=60)
    short, long = verifier.verify_batch([(PROBLEM, ANSWER), (PROBLEM, "1" * 61 + "\n\n2")])
    assert short.status is Status.PARTIAL
    assert (long.status, long.score) == (Status.LIMIT, 0.0)
    assert "more than the process reward model reads" in long.reason


@pytest.mark.parametrize("threshold", [0.0, 0.999999])
def test_a_threshold_decides_what_is_correct(models, threshold):
    """Else every verdict is partial."""
    verdict = make_model(models, "head", threshold=threshold)(PROBLEM, ANSWER)
    assert verdict.status is (Status.CORRECT if threshold == 0 else Status.INCORRECT)
    assert 0 < verdict.score < 1


def test_a_model_that_gives_no_number_is_an_error(tmp_path):
    """Of that text alone."""

    def change(model):
        with torch.no_grad():
            model.model.embed_tokens.weight[step_tokenizer().convert_tokens_to_ids("b")] = math.nan

    verifier = make_model({"head": save_head(tmp_path, change=change)}, "head")
    good, bad = verifier.verify_batch([(PROBLEM, "1\n\n2"), (PROBLEM, "b\n\n2")])
    assert (good.status, bad.status) == (Status.PARTIAL, Status.ERROR)
    assert "nan" in bad.reason


def test_a_classifier_with_one_layer_and_text_without_chat(tmp_path):
    """As transformers' own class saves it."""
    folder = save_head(tmp_path, layers=1, chat_template=None)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["Qwen2ForTokenClassification"]
    model = Qwen2ForTokenClassification.from_pretrained(folder).eval()
    tokenizer = step_tokenizer()
    ids = torch.tensor([tokenizer("1+1= 1 <extra_0>\n2 <extra_0>").input_ids])
    with torch.no_grad():
        expected = model(ids).logits.softmax(-1)[0, ids[0] == tokenizer.convert_tokens_to_ids("<extra_0>"), 1]
    assert probabilities(make_model({"head": folder}, "head")(PROBLEM, "1\n\n2")) == pytest.approx(
        expected.tolist(), abs=6e-4
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tag": "<step>"}, "tag '<step>': the model's tokenizer has no token for it"),
        ({"form": "tokens", "good": "yes"}, "good 'yes': the model's tokenizer has no token for it"),
        ({"form": "tokens", "chat": "always"}, "has no weights for|has no token|lm_head"),
        ({"max_tokens": 500}, "max_tokens 500: the reward model reads at most 128"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line_at_the_first_call(models, options, message):
    """As a RunError, which ends a run."""
    with pytest.raises(RunError, match=message) as caught:
        make_model(models, "head", **options)(PROBLEM, ANSWER)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("process_reward_model: ")


def test_a_model_that_scores_whole_texts_is_refused(tmp_path):
    """And one of an unknown kind, by its name."""
    save_model(tmp_path)
    with pytest.raises(RunError, match="is Qwen2ForSequenceClassification, and neither"):
        ProcessRewardModel(model=str(tmp_path), device="cpu")(PROBLEM, ANSWER)
    name_it(tmp_path, "Qwen2ForPrmModel")
    with pytest.raises(RunError, match="is Qwen2ForPrmModel, and neither"):
        ProcessRewardModel(model=str(tmp_path), device="cpu")(PROBLEM, ANSWER)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "process_reward_model model: name a hub model"),
        ({"model": "/no/such"}, "no such folder"),
        ({"model": "org/name", "batch_size": 0}, "batch_size 0"),
        ({"model": "org/name", "separator": ""}, "separator: expected"),
        ({"model": "org/name", "tag": " "}, "tag ' ': expected"),
        ({"model": "org/name", "good": "-"}, "expected two different answers"),
        ({"model": "org/name", "max_tokens": -1}, "max_tokens -1"),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_loaded(options, message):
    """In one line."""
    with pytest.raises(ValueError, match=message):
        ProcessRewardModel(**options)


# RL against a process reward model: its steps are credited one by one, or as one outcome, and both learn.


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A process reward model for which a step is right that holds a 7."""
    rng = Random(0)
    texts = ["=".join("".join(rng.choices("0123456789", k=rng.randint(1, 4))) for _ in range(3)) for _ in range(96)]
    return save_head(
        tmp_path_factory.mktemp("prm"), change=fit_head(lambda step: "7" in step, texts, separator="=", steps=250)
    )


@pytest.mark.parametrize("credit", ["step", "outcome"])
def test_a_policy_learns_from_the_scores_of_steps(tmp_path, model, credit):
    """The mean score rises by .3 at least; steps are credited only where that was asked for."""
    verifier = ProcessRewardModel(model=model, device="cpu", separator="=", reduce="min")
    problems = [Problem(f"p{i}", f"{i}+{i}=", "") for i in range(24)]
    task = build_task("sevens", train=problems[:16], test=problems[16:], verifier="exact", check_references=False)
    config = tiny(
        tmp_path,
        run={"steps": 12, "sample_every": 0},
        rollout={"problems_per_step": 4, "group_size": 8, "max_new_tokens": 8},
        algo={"name": "rloo", "credit": credit},
        optim={"lr": 5e-4},
        eval={"every": -1},
    )
    launch(config, task=task, verifier=verifier)
    rows = lines(tmp_path / "metrics.jsonl")
    first, last = rows[0]["reward"], rows[-1]["reward"]
    assert first < 0.6
    assert last > first + 0.3
    assert all(("credit/steps" in row) == (credit == "step") for row in rows)
    if credit == "step":
        assert max(row["credit/steps"] for row in rows) > 1

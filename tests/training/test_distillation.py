"""Distillation: expected gradients by enumeration, what teachers read, what a run logs, and its exact resume.

The policy is a real model of a few thousand weights with five tokens, and a completion has three of them at most: all
85 can be listed with their probabilities, so that an expectation is a sum.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from rlvr.algo.batch import Batch, collate
from rlvr.config import AlgoConfig, Config, ModelConfig, TeacherConfig
from rlvr.core.types import PACK, Completion, Group, Problem, Turn, correct, error, incorrect
from rlvr.model.load.policy import Policy
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.model.optim.optimizer import make_optimizer
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.tasks.mixture import RoutedVerifier
from rlvr.train import train
from rlvr.training.run import HeldOutEvaluation, Run
from rlvr.training.step.distillation.feedback import Feedback
from rlvr.training.step.distillation.teacher import Teacher, open_teacher
from rlvr.training.step.distillation.teacher_batch import compare_rows, consult_teacher, distillation_loss, teacher_rows
from rlvr.training.step.learner import Learner
from rlvr.training.step.prepare import prepare_batch
from rlvr.training.step.update import accumulate_gradient
from tests.helpers.enumeration import cosine, gradient, probabilities, whole_group
from tests.helpers.files import lines
from tests.helpers.models import shake, small_policy, tiny_policy
from tests.helpers.runs import SHORT_PROMPT, gradient_of, make_run, make_short_run
from tests.helpers.verifiers import PROBLEMS, OddDigits


def run_with_teacher(folder: Path, **teacher) -> Run:
    """A short run whose teacher is its policy with other weights."""
    run = make_short_run(folder, away=0.2, kl_coef=0.0, normalize="constant")
    settings = TeacherConfig(ratio_cap=1e6, **teacher)
    algo = AlgoConfig("opd", normalize="constant", importance_cap=1e6)
    run.learner.config = dataclasses.replace(run.learner.config, algo=algo, teacher=settings)
    own = run.learner.policy.frozen_copy()
    shake_frozen(own, 0.2, 7)
    run.learner.teacher = Teacher(settings, own)
    return run


def shake_frozen(policy: Policy, size: float, seed: int) -> None:
    policy.model.requires_grad_(True)
    shake(policy, size, seed)
    policy.model.requires_grad_(False)


def distributions(run: Run, batch: Batch) -> tuple[Tensor, Tensor]:
    """Log-probabilities (B, T - 1, V) of policy and teacher."""
    policies = (run.learner.policy, run.learner.teacher.policy)
    one, other = (policy.model(batch.tokens).logits[:, :-1].log_softmax(-1) for policy in policies)
    return one, other.detach()


def divergence(one: Tensor, other: Tensor, beta: float) -> Tensor:
    """The formulas once more, by probabilities: (B, T - 1)."""
    p, t = one.exp(), other.exp()
    if beta in (0, 1):
        a, b = (t, p) if beta == 0 else (p, t)
        return (a * (a / b).log()).sum(-1)
    m = beta * t + (1 - beta) * p
    return beta * (t * (t / m).log()).sum(-1) + (1 - beta) * (p * (p / m).log()).sum(-1)


def coarse(logprobs: Tensor, ids: Tensor) -> Tensor:
    """The probabilities of some tokens and of all others as one, as logarithms."""
    chosen = logprobs.exp().gather(-1, ids)
    return torch.cat([chosen, 1 - chosen.sum(-1, keepdim=True)], -1).log()


def expect_loss(run: Run, batch: Batch, sampled: Tensor, importance: str = "none") -> Tensor:
    """The mean over completions, by their probabilities, of the loss of each alone."""
    total = torch.zeros(())
    for i, share in enumerate(sampled):
        row = batch.rows(torch.tensor([i]))
        total = total + share * distillation_loss(run.learner, compare_rows(run.learner, row), row, 1.0, importance)[0]
    return total


def batch_of(run: Run, group: Group) -> Batch:
    """All completions as a batch that the teacher was consulted about."""
    batch = collate([group], [[0.0] * len(group.completions)], pad_id=0)
    return consult_teacher(run.learner, 1, [group], batch)[0]


def wanted_gradient(run: Run, batch: Batch, sampled: Tensor, beta: float, top_k: int = 0) -> Tensor:
    one, other = distributions(run, batch)
    if top_k:
        ids = other.topk(top_k, dim=-1).indices
        one, other = coarse(one, ids), coarse(other, ids)
    return gradient(run, sampled @ (divergence(one, other, beta) * batch.mask[:, 1:]).sum(-1))


FORMS = [("sampled", 1.0, 0), *(("js", beta, 0) for beta in (0.0, 0.1, 0.5, 0.9, 1.0)), ("js", 0.5, 2), ("js", 1.0, 2)]


@pytest.mark.parametrize(("loss", "beta", "top_k"), FORMS)
def test_expected_gradient_is_that_of_the_named_divergence(tmp_path, loss, beta, top_k):
    """Far from the teacher, for the sampled form and the divergences of whole and of coarser distributions."""
    run = run_with_teacher(tmp_path, loss=loss, beta=beta, top_k=top_k)
    batch = batch_of(run, whole_group(run))
    sampled = probabilities(run, batch)
    found = gradient(run, expect_loss(run, batch, sampled))
    wanted = wanted_gradient(run, batch, sampled, beta, top_k)
    assert cosine(found, wanted) > 0.9999
    assert float(found.norm()) == pytest.approx(float(wanted.norm()), rel=1e-3)


@pytest.mark.parametrize(("loss", "beta"), [("sampled", 1.0), ("js", 0.5)])
def test_the_second_update_of_the_same_rollouts_follows_the_divergence_too(tmp_path, loss, beta):
    """The policy has moved since it sampled: the sampled form is corrected by its ratio, the full one needs none."""
    run = run_with_teacher(tmp_path, loss=loss, beta=beta)
    algo = dataclasses.replace(run.learner.config.algo, minibatches=2)
    run.learner.config = dataclasses.replace(run.learner.config, algo=algo)
    batch = prepare_batch(run.learner, batch_of(run, whole_group(run)))
    sampled = probabilities(run, batch)
    shake(run.learner.policy, 0.05, 2)
    assert (probabilities(run, batch) - sampled).abs().sum() > 0.05
    found = gradient(run, expect_loss(run, batch, sampled))
    assert cosine(found, wanted_gradient(run, batch, sampled, beta)) > 0.9999


def test_importance_weights_correct_the_sampled_form_for_another_engine(tmp_path):
    """Rollouts of other weights: without importance weights the gradient is another, with them it is exact."""
    run = run_with_teacher(tmp_path, loss="sampled")
    batch = batch_of(run, whole_group(run))
    sampled = probabilities(run, batch)
    with torch.no_grad():
        engine = token_logprobs(run.learner.policy, batch.tokens, batch.mask)[0]
    shake(run.learner.policy, 0.05, 2)
    batch = dataclasses.replace(batch, sampler_logprobs=engine)
    wanted = wanted_gradient(run, batch, sampled, 1.0)
    assert cosine(gradient(run, expect_loss(run, batch, sampled, "token")), wanted) > 0.9999
    assert cosine(gradient(run, expect_loss(run, batch, sampled, "none")), wanted) < 0.9999


# What teachers are, and what they read.


def verdicts_group(run: Run, statuses: str) -> Group:
    """A group of one-token completions: c correct, w wrong, e an error of the verifier."""
    made = {"c": correct(), "w": incorrect("3, not 4"), "e": error("broken")}
    completions = tuple(Completion(text, (1 + n % 3,), (0.0,)) for n, text in enumerate("abcdef"[: len(statuses)]))
    prompt = tuple(run.learner.policy.render(SHORT_PROMPT))
    problem = Problem("0", SHORT_PROMPT, reference="4")
    return Group(problem, prompt, completions, tuple(made[status] for status in statuses))


def self_taught(folder: Path, template: str, **teacher) -> Run:
    """A short run that learns from itself, told by a template."""
    run = run_with_teacher(folder, template=template, **teacher)
    algo = dataclasses.replace(run.learner.config.algo, name="sdpo")
    run.learner.config = dataclasses.replace(run.learner.config, algo=algo)
    settings = run.learner.teacher.settings
    run.learner.teacher.feedback = Feedback(None, settings.tells, settings.template)
    return run


def test_completions_are_told_what_the_verifier_said_and_a_correct_sibling(tmp_path):
    """Status and reason unless correct, a sibling but not themselves; a verdict without score tells nothing."""
    run = run_with_teacher(tmp_path)
    told = Feedback(None, ("status", "reason", "sibling"), "{prompt}\n\n{status}, {reason}\n\ns {sibling}")
    first = f"{SHORT_PROMPT}\n\nincorrect, 3, not 4"
    group = verdicts_group(run, "wcwe")
    assert told.prompts_of(group) == [f"{first}\n\ns b", None, f"{first}\n\ns b", None]
    assert told.prompts_of(verdicts_group(run, "cc")) == [f"{SHORT_PROMPT}\n\ns b", f"{SHORT_PROMPT}\n\ns a"]
    reference = Feedback(None, ("reference",), None).prompts_of(group)
    assert "The correct answer is 4." in reference[0]
    assert "feedback" not in reference[0]
    assert "Correctly solve the original question." in reference[0]


def test_the_template_is_the_verifiers_own_unless_a_setting_gives_one():
    """In a mixture that of the pack's verifier."""

    class Own:
        feedback_template = "{prompt} {status}"

        def __call__(self, problem, completion):
            return True

    problem = Problem("0", "1+1=", info={PACK: "a"})
    wrong = incorrect("x")
    assert Feedback(Own(), ("status",)).prompt_of(problem, wrong, None) == "1+1= incorrect"
    assert Feedback(Own(), ("status",), "{status}: {prompt}").prompt_of(problem, wrong, None) == "incorrect: 1+1="
    routed = RoutedVerifier({"b": lambda problem, completion: True, "a": Own()})
    assert Feedback(routed, ("status",)).prompt_of(problem, wrong, None) == "1+1= incorrect"
    assert Feedback(Own(), ("reason",)).prompt_of(problem, wrong, None) is None  # the template does not name it


def test_of_chat_messages_the_last_is_extended_and_told_text_is_not_read_again():
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "1+1="}]
    feedback = Feedback(None, ("reason",), "{prompt}\n\n{reason}")
    made = feedback.prompt_of(Problem("0", messages), incorrect("{prompt} {reference}"), None)
    assert made == [messages[0], {"role": "user", "content": "1+1=\n\n{prompt} {reference}"}]


def test_a_self_teacher_speaks_of_the_same_tokens_after_its_own_prompt(tmp_path):
    """Its log-probabilities are those of its own rows, and rows of which it is told nothing have no gradient."""
    run = self_taught(tmp_path, "{prompt}{sibling}==", tells=("sibling",))
    group = dataclasses.replace(whole_group(run), verdicts=(correct(), *[incorrect()] * 84))
    group = dataclasses.replace(group, completions=tuple(dataclasses.replace(c, text="0") for c in group.completions))
    batch = batch_of(run, group)
    assert batch.teacher_weights.tolist() == [0.0, *[1.0] * 84]
    found = compare_rows(run.learner, batch)
    prompt = run.learner.policy.render(f"{SHORT_PROMPT}0==")
    for row in (1, 30, 84):
        ids = torch.tensor([[*prompt, *group.completions[row].token_ids]])
        mask = torch.arange(ids.shape[1])[None] >= len(prompt)
        wanted = token_logprobs(run.learner.teacher.policy, ids, mask)[0][mask]
        assert torch.allclose(found.teacher_logprobs[row][batch.mask[row]], wanted, atol=1e-5)
    alone = batch.rows(torch.tensor([0]))
    loss, sums = distillation_loss(run.learner, compare_rows(run.learner, alone), alone, 1.0, "none")
    assert float(loss.detach()) == float(sums["teacher/tokens"]) == 0


def test_a_teacher_reads_a_void_turn_that_is_not_trained_on(tmp_path):
    """Its row is its own prompt and all of the completion, whatever of that is masked."""
    run = self_taught(tmp_path, "{prompt}=={status}", tells=("status",))
    turns = (Turn("assistant", "00", 2, void=True), Turn("tool", "=", 1), Turn("assistant", "0", 1))
    completion = Completion("0", (3, 3, 4, 3), (0.0,) * 4, turns=turns)
    prompt = tuple(run.learner.policy.render(SHORT_PROMPT))
    group = Group(Problem("0", SHORT_PROMPT), prompt, (completion,) * 2, (incorrect(),) * 2)
    batch = collate([group], [[0.0, 0.0]], pad_id=0, mask_void=True)
    batch = consult_teacher(run.learner, 1, [group], batch)[0]
    tokens, mask = teacher_rows(batch, batch.scored)
    told = run.learner.policy.render(f"{SHORT_PROMPT}==incorrect")
    assert tokens.tolist() == [[*told, 3, 3, 4, 3]] * 2
    assert mask.nonzero()[:, 1].tolist() == [len(told) + 3] * 2


def test_losses_are_mixed_by_a_weight_for_each_pack(tmp_path):
    """(1 - w) policy loss + w distillation, in every gradient."""
    gradients = {}
    for name, weight in (("policy", 0.0), ("teacher", 1.0), ("both", 0.3)):
        run = run_with_teacher(tmp_path, loss="js", beta=0.5, weight=weight)
        group = whole_group(run)
        batch = collate([group], [[(-1.0) ** n for n in range(85)]], pad_id=0)
        gradients[name] = gradient_of(run, consult_teacher(run.learner, 1, [group], batch)[0])
    assert torch.allclose(gradients["both"], 0.7 * gradients["policy"] + 0.3 * gradients["teacher"], atol=1e-5)
    run = run_with_teacher(tmp_path, weight=0.5, pack_weight=("a=0.25",))
    groups = [
        dataclasses.replace(verdicts_group(run, "cw"), problem=Problem(pack, SHORT_PROMPT, info={PACK: pack}))
        for pack in ("a", "b")
    ]
    batch = consult_teacher(run.learner, 1, groups, collate(groups, [[1.0, -1.0]] * 2, pad_id=0))[0]
    assert batch.teacher_weights.tolist() == [0.25, 0.25, 0.5, 0.5]
    assert batch.advantages.tolist() == [0.75, -0.75, 0.5, -0.5]


def test_the_average_follows_the_policy(tmp_path):
    """Each step takes in a share of the present weights; frozen ones are shared."""
    run = run_with_teacher(tmp_path)
    teacher = Teacher(run.learner.teacher.settings, run.learner.policy.frozen_copy(), follows=0.25)
    before = [weight.clone() for weight in teacher.policy.model.parameters()]
    shake(run.learner.policy, 0.1, 3)
    teacher.follow(run.learner.policy)
    for old, now, own in zip(before, teacher.policy.model.parameters(), run.learner.policy.parameters(), strict=True):
        assert torch.allclose(now, 0.75 * old + 0.25 * own, atol=1e-6)
        assert not now.requires_grad


def test_an_adapter_that_is_switched_off_teaches(tmp_path):
    """The base's log-probabilities; and the adapter is back, with a gradient, after each pass."""
    policy = tiny_policy(lora_rank=2)
    plain = tiny_policy()
    shake(policy, 0.3, 1)
    config = Config(algo=AlgoConfig("opd"), teacher=TeacherConfig("base", loss="js"), model=ModelConfig(lora_rank=2))
    learner = Learner(config, policy, make_optimizer(policy.parameters(), config.optim), Accelerator(cpu=True))
    learner.teacher = open_teacher(config, policy, None, learner.accelerator)
    completion = Completion("", tuple(policy.encode("46 7")), (0.0,) * 4)
    group = Group(Problem("0", "12+34="), tuple(policy.render("12+34=")), (completion,) * 2, (incorrect(),) * 2)
    batch = collate([group], [[0.0, 0.0]], pad_id=0)
    wanted = token_logprobs(plain, batch.tokens, batch.mask)[0]
    batch = consult_teacher(learner, 1, [group], batch)[0]
    assert torch.allclose(compare_rows(learner, batch).teacher_logprobs, wanted, atol=1e-5)
    accumulate_gradient(learner, batch)
    assert all(weight.requires_grad for weight in policy.parameters())
    assert any(bool(weight.grad.abs().sum() > 0) for weight in policy.parameters())


def test_a_teacher_with_another_tokenizer_is_refused_in_one_line(tmp_path):
    """Before anything is sampled; one with the same is loaded, frozen."""
    policy = tiny_policy()
    policy.save(tmp_path / "same")
    other = small_policy()
    other.tokenizer.add_tokens(["~"])
    other.save(tmp_path / "other")
    config = Config(algo=AlgoConfig("opd"), model=ModelConfig(device="cpu"))

    def open_named(name: str) -> Teacher:
        teacher = TeacherConfig(name=str(tmp_path / name))
        made = open_teacher(dataclasses.replace(config, teacher=teacher), policy, None, Accelerator(cpu=True))
        assert made is not None
        return made

    assert open_named("same").policy.parameters() == []
    with pytest.raises(ValueError, match=r"its tokenizer is not the policy's .* they differ in '~'.*\Z"):
        open_named("other")


def test_what_the_teacher_is_told_is_in_no_rollout_and_no_evaluation(tmp_path):
    """The sampler sees the problems' prompts alone, while the teacher reads longer ones."""
    asked: set[str] = set()

    class Noting(TorchSampler):
        def stream(self, prompts, sampling, seeds, on_group):
            asked.update(self.policy.decode(prompt) for prompt in prompts)
            return super().stream(prompts, sampling, seeds, on_group)

    run = make_run(
        tmp_path, algo={"name": "sdpo"}, teacher={"kind": "live", "template": "{prompt}9=9 {status}"}, run={"steps": 2}
    )
    run.worker.sampler = Noting(run.learner.policy)
    run.learner.teacher = open_teacher(run.config, run.learner.policy, None, run.learner.accelerator)
    read: list[tuple[int, ...]] = []
    before = run.learner.teacher.prompts_of
    run.learner.teacher.prompts_of = lambda policy, group: read.extend(found := before(policy, group)) or found
    run.held_out = HeldOutEvaluation(run, PROBLEMS[:4], {"verifier": OddDigits()})
    train(run)
    run.evaluate(2)
    told = {run.learner.policy.decode(ids) for ids in read if ids}
    assert told
    assert all("9=9" in text for text in told)
    assert asked
    assert asked <= {problem.prompt for problem in PROBLEMS}
    assert "9=9" not in " ".join(str(row["prompt"]) for row in lines(tmp_path / "rollouts.jsonl") if "prompt" in row)

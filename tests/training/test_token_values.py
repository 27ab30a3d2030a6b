"""Values of each token in rollouts.jsonl: whose, which, and that keeping them changes nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rlvr.commands.verify_resume import without_measured
from rlvr.core.types import Completion, Turn
from rlvr.launch import launch
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.training.step.token_values import count_characters, describe_tokens
from rlvr.training.step.update import to_batch, update
from tests.helpers.runs import groups_of, make_run, tiny
from tests.helpers.verifiers import sums


def values_after_update(run: Any) -> list[dict[str, Any]]:
    """The records of the rollouts of one step, each with its values where they are kept."""
    groups, advantages = groups_of(run)
    update(run.learner, 0, groups, advantages)
    records: list[dict[str, Any]] = [{} for group in groups for _ in group.completions]
    run.learner.token_values.add_to(records, groups, run.learner.policy.decode, run.learner.accelerator)
    return records


def test_values_are_those_of_the_policy_before_the_update(tmp_path) -> None:
    """Entropy and difference of each sampled token, in thousandths of a nat; the engine is the trainer's own."""
    run = make_run(tmp_path)
    groups, advantages = groups_of(run)
    batch = to_batch(run.learner, groups, advantages)
    _, entropy = token_logprobs(run.learner.policy, batch.tokens, batch.scored, with_entropy=True)
    records = values_after_update(run)
    kept = [record["token_values"] for record in records if record]
    assert len(kept) >= 8
    for row, own in enumerate(kept[:8]):
        assert own["entropy"] == pytest.approx((entropy[row][batch.scored[row]] * 1000).tolist(), abs=0.6)
        assert own["difference"] == pytest.approx([0] * len(own["entropy"]), abs=1)
        assert set(own) == {"lengths", "entropy", "difference"}


@pytest.mark.parametrize("algo", [{}, {"minibatches": 3, "epochs": 2}, {"name": "ppo"}])
def test_the_first_rollouts_of_a_step_have_values(tmp_path, algo) -> None:
    """Whatever the minibatches are: those of the first groups; with a critic each token has an advantage of its own."""
    settings = {"steps": 2, "sample_every": 0, "token_values": 5}
    launch(tiny(tmp_path, run=settings, algo=algo, optim={"max_update_kl": 0.0}, eval={"every": -1}), task=sums())
    rows = [json.loads(line) for line in (tmp_path / "rollouts.jsonl").read_text().splitlines()]
    for step in (1, 2):
        own = [row for row in rows if row["step"] == step]
        texts = {(row["problem"], row["completion"]) for row in own if "token_values" in row}
        first = [row for row in own if row["advantage"] or algo.get("name") == "ppo"][:5]
        assert step == 2 or len(first) == 5
        assert all("token_values" in row for row in first)
        assert len(texts) <= len(first)
        for row in own:
            values = row.get("token_values")
            if values is not None:
                assert {len(column) for column in values.values()} == {row["tokens"]}
                assert sum(values["lengths"]) == len(row["completion"])
                assert ("advantage" in values) == (algo.get("name") == "ppo")


def test_keeping_them_changes_nothing_else(tmp_path) -> None:
    """The same numbers in every digit with and without; none are kept where none are asked for."""

    def train(folder: Path, count: int) -> list[Any]:
        launch(tiny(folder, run={"steps": 3, "token_values": count}, eval={"every": -1}), task=sums())
        rows = [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]
        assert any("token_values" in row for row in rows) == (count > 0)
        metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        texts = [{name: value for name, value in row.items() if name != "token_values"} for row in rows]
        return [list(map(without_measured, metrics)), texts]

    assert train(tmp_path / "with", 8) == train(tmp_path / "without", 0)


def bytes_as_tokens(ids: list[int]) -> str:
    """Decode tokens that are one byte each, as a byte-level tokenizer does."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.WordLevel({letter: number for number, letter in enumerate(letters)}, "!"))
    tokenizer.decoder = decoders.ByteLevel()
    return str(tokenizer.decode(ids))


@pytest.mark.parametrize("text", ["plain text, longer than a window of tokens", "é and 🙂🙂 and 数学 " * 5, "🙂", ""])
def test_each_character_belongs_to_the_token_that_completes_it(text) -> None:
    """With a byte for a token: the last byte of each character has all of it, wherever the windows begin."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    (split,) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text) or [("", 0)]
    ids = [letters.index(letter) for letter in split[0]]
    expected = [count for letter in text for count in [0] * (len(letter.encode()) - 1) + [1]]
    assert count_characters(ids, bytes_as_tokens) == expected


def test_a_first_space_that_a_tokenizer_drops_is_counted_within_a_text() -> None:
    """SentencePiece decodes a text without the space of its first token."""
    words = [" one", " two", "s", " three"] * 12
    lengths = count_characters(range(len(words)), lambda ids: "".join(words[i] for i in ids).removeprefix(" "))
    assert lengths == [3, *map(len, words[1:])]


def test_turns_of_the_model_alone_have_values() -> None:
    """The tokens of replies are left out; characters are counted from the beginning of each turn."""
    turns = (Turn("assistant", "ab", 2), Turn("tool", "xyz", 3), Turn("assistant", "c", 1))
    completion = Completion("c", tuple(range(6)), (0.0,) * 6, turns=turns)
    values = {"entropy": [9, 9, 1, 2, 0, 0, 0, 3]}  # two tokens of the prompt
    found = describe_tokens(completion, values, lambda ids: "".join("abxyzc"[i] for i in ids))
    assert found == {"lengths": [1, 1, 1], "entropy": [1, 2, 3]}

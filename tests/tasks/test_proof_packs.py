"""The packs `propositions` and `constraints`: seeded, and no problem in two parts."""

from __future__ import annotations

import re

import pytest

from rlvr.core.registry import make_task

HYPOTHESIS = re.compile(r"\((\w+) : (?:(\w) -> )?(\w)\)")


@pytest.mark.parametrize("name", ["propositions", "constraints"])
def test_parts_are_disjoint_and_seeded(name: str) -> None:
    def prompts(seed: int) -> list[set[str]]:
        task = make_task(name, seed=seed, num_train=60, num_test=60, num_demonstrations=60)
        parts = [list(task.train), list(task.test), [task.demonstrations[index][0] for index in range(60)]]
        return [{str(problem.prompt) for problem in part} for part in parts]

    train, test, demonstrations = prompts(0)
    assert not train & test
    assert not test & demonstrations
    assert not train & demonstrations
    assert prompts(0)[0] == train != prompts(1)[0]


@pytest.mark.parametrize(
    "option", [{"kinds": ("nosuch",)}, {"kinds": ()}, {"sloppy": 2.0}, {"slip": -0.1}, {"slip": 1.5}]
)
def test_options_out_of_bounds_are_refused(option: dict) -> None:
    with pytest.raises(ValueError, match="propositions"):
        make_task("propositions", **option)


def test_sloppy_demonstrations_hold_other_proofs() -> None:
    clean = make_task("propositions", num_demonstrations=40)
    sloppy = make_task("propositions", num_demonstrations=40, sloppy=1.0)
    assert [clean.demonstrations[i][0] for i in range(40)] == [sloppy.demonstrations[i][0] for i in range(40)]
    differ = [clean.demonstrations[i][1] != sloppy.demonstrations[i][1] for i in range(40)]
    assert sum(differ) > 30


@pytest.mark.parametrize("kind", ["either", "chain"])
def test_slips_change_choices_and_nothing_else(kind: str) -> None:
    """Statements stay, scripts keep their sentences, and about that share of the choices is another one."""
    clean = make_task("propositions", num_demonstrations=200, kinds=(kind,))
    slips = make_task("propositions", num_demonstrations=200, kinds=(kind,), slip=0.5)
    choices = changed = 0
    for index in range(200):
        (problem, proof), (other, script) = clean.demonstrations[index], slips.demonstrations[index]
        assert problem == other
        right, found = proof.split(". "), script.split(". ")
        assert len(right) == len(found)
        for a, b in zip(right, found):
            if a != b:
                assert a.split()[0] == b.split()[0] or {a, b} == {"left", "right"}
                changed += 1
            choices += a.split()[0] in ("apply", "exact", "left", "right")
    # Of `either` the one hypothesis has no other.
    assert 0.1 < changed / choices < 0.6


@pytest.mark.parametrize("slip", [0.0, 0.3, 1.0])
def test_a_slip_of_rules_goes_on_from_the_hypothesis_that_it_takes(slip: float) -> None:
    """Every step takes a hypothesis of the theorem: the right one, or a slip's, and ends at a fact or in a circle."""
    task = make_task("propositions", num_demonstrations=200, kinds=("rules",), slip=slip)
    slips = steps = 0
    for index in range(200):
        problem, script = task.demonstrations[index]
        statement = str(problem.reference["statement"])
        given = {name: (premise, letter) for name, premise, letter in HYPOTHESIS.findall(statement)}
        goals = statement.rpartition(", ")[2].split(" /\\ ")
        taken = [given[name] for name in re.findall(r"apply (\w+)\.", script)]
        assert script == " ".join(["intros.", *["split."] * (len(goals) - 1), *re.findall(r"apply \w+\.", script)])
        wanted, rest, chain = goals[0], goals[1:], 0
        for premise, letter in taken:
            slips, steps, chain = slips + (letter != wanted), steps + 1, chain + 1
            wanted = premise
            if (not premise or chain == len(given)) and rest:
                wanted, chain = rest.pop(), 0
        assert not rest
        assert not wanted or chain == len(given)
    assert abs(slips / steps - slip) < 0.06


def test_no_slip_and_every_slip() -> None:
    def scripts(slip: float) -> list[str]:
        task = make_task("propositions", num_demonstrations=50, kinds=("rules",), slip=slip)
        return [task.demonstrations[index][1] for index in range(50)]

    assert all(a != b for a, b in zip(scripts(0.0), scripts(1.0)))

"""The packs `propositions` and `constraints`: seeded, and no problem in two parts."""

from __future__ import annotations

import pytest

from rlvr.registry import make_task


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


@pytest.mark.parametrize("option", [{"kinds": ("nosuch",)}, {"kinds": ()}, {"sloppy": 2.0}])
def test_options_out_of_bounds_are_refused(option: dict) -> None:
    with pytest.raises(ValueError, match="propositions"):
        make_task("propositions", **option)


def test_sloppy_demonstrations_hold_other_proofs() -> None:
    clean = make_task("propositions", num_demonstrations=40)
    sloppy = make_task("propositions", num_demonstrations=40, sloppy=1.0)
    assert [clean.demonstrations[i][0] for i in range(40)] == [sloppy.demonstrations[i][0] for i in range(40)]
    differ = [clean.demonstrations[i][1] != sloppy.demonstrations[i][1] for i in range(40)]
    assert sum(differ) > 30

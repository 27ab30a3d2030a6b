"""Every command that the project prints is taken by `rlvr`: its flags, their values together, the names in them.

READMEs, docstrings of recipes and modules, messages and help texts, the notebook, and the comments of job files.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.files import ROOT
from tests.helpers.printed_commands import Printed, commands_of, complaint, sources

PRINTED = {path: found for path in sources() if (found := commands_of(path))}


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(ROOT))) for path in PRINTED])
def test_printed_commands_are_taken(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsed, and their settings and names checked, as the command itself does before it reads a file."""
    monkeypatch.chdir(tmp_path)
    wrong = {printed.line: said for printed in PRINTED[path] if (said := complaint(printed))}
    assert not wrong, wrong


def test_the_commands_are_found() -> None:
    """Of each kind of place one that is known, and many in all."""
    for place, line, whole in [
        ("docs/how-to/recipe.md", "rlvr train sums.py --algo ppo --critic.lr 2e-4 --dry-run", True),
        ("recipes/tiny_math.py", "rlvr train tiny_math --algo ppo", True),
        ("recipes/tool_math.py", "rlvr train tool_math --run.environment-option tools=calculator calls=hermes", True),
        ("recipes/container/Dockerfile", "rlvr doctor --offline", True),
        ("recipes/rm_grpo.py", "rlvr rm rm_pairs", False),
    ]:
        assert Printed(line, whole) in PRINTED[ROOT / place]
    assert sum(map(len, PRINTED.values())) > 150


@pytest.mark.parametrize(
    "command",
    [
        "rlvr trian tiny_math",
        "rlvr train tiny_maths",
        "rlvr train tiny_math --run.stebs 1",
        "rlvr train tiny_math --run.steps few",
        "rlvr train math_grpo --run.verifier-option extrakt=strict",
        "rlvr train tiny_math --monitor NAME --monitor.verifier-option extrakt=strict",
        "rlvr train tiny_math --rollout.group-size 1",
        "rlvr train tiny_math --sft.steps 0 --sft.lr 1e-3",
        "rlvr rm rm_pairs --pairs.task arithmetik",
        "rlvr pipeline instructgpt --set ppo.run.stebs=1",
        "rlvr eval --model M --task arithmetik",
        "rlvr eval --model M --task arithmetic --k 5",
        "rlvr grade --verifier math --no-such FILE",
        "rlvr verify-resume tiny_math --run.steps 1",
        "rlvr doctor --plan tiny_math --gpuz 2",
    ],
)
def test_a_wrong_command_would_be_found(command: str) -> None:
    """What the tests above rely on."""
    assert complaint(Printed(command, True))

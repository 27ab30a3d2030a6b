"""`rlvr new KIND NAME`: a verifier, task pack, environment or recipe of your own that runs at once, with its test."""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .arguments import Positional, parse

TEMPLATES = Path(__file__).with_name("templates")  # of each kind its file and its test; NAME stands for the name
# Of each kind: what to run next.
KINDS = {
    "verifier": "rlvr grade FILE.jsonl --verifier NAME:NAME",
    "pack": "rlvr audit NAME:NAME",
    "environment": "rlvr train RECIPE --run.environment NAME:NAME --run.task jsonl --run.data FILE.jsonl",
    "recipe": "rlvr train NAME.py",
}


@dataclass(frozen=True)
class NewArgs:
    """Write NAME.py and test_NAME.py into the current folder: an example that runs, to be changed into your own."""

    kind: Positional[Literal["verifier", "pack", "environment", "recipe"]]
    """What to make."""
    name: Positional[str]
    """Its name, a Python name in lower case."""


def main(argv: Sequence[str]) -> int:
    args = parse(NewArgs, argv, prog="rlvr new")
    if not args.name.isidentifier() or keyword.iskeyword(args.name) or args.name != args.name.lower():
        raise ValueError(f"rlvr new: the name {args.name!r}: expected a Python name in lower case, such as my_check")
    written = {Path(f"{args.name}.py"): args.kind, Path(f"test_{args.name}.py"): f"{args.kind}_test"}
    present = [str(path) for path in written if path.exists()]
    if present:
        raise ValueError(f"rlvr new: {' and '.join(present)} exists; take another name, or delete it")
    for path, template in written.items():
        text = (TEMPLATES / f"{template}.txt").read_text("utf-8").replace("NAME", args.name)
        path.write_text(text, encoding="utf-8")
    command = KINDS[args.kind].replace("NAME", args.name)
    print(f"{' and '.join(map(str, written))} written; next:\n  pytest test_{args.name}.py\n  {command}")
    return 0

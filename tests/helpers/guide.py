"""Pages of the guide as tests run them: their blocks of code, the commands in these, and what they print.

docs/README.md says how a page is written. `python -m tests.helpers.guide docs/PAGE.md` runs one and writes what its
blocks print into the `text` blocks after them.
"""

from __future__ import annotations

import ast
import atexit
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

from tests.helpers import warm
from tests.helpers.files import ROOT
from tests.helpers.printed_commands import Printed, commands_of_line, complaint

DOCS = ROOT / "docs"
BLOCK = re.compile(
    r"(?P<marks>(?:^ *<!--[^\n]*-->\n\s*)*)"
    r"^(?P<indent> *)```(?P<language>\w+)(?P<rest>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
MARK = re.compile(r"<!-- (?P<name>needs|after|slow)(?:: (?P<value>[^\n]*?))? -->")
RUN = ("python", "console", "bash")
FILES = ("json", "jsonl", "toml", "yaml", "python", "text", "bash")  # languages of blocks with a title: files
SHOWN = ("text", "json", "jsonl", "toml", "yaml", "html", "markdown")  # not run
# What a block may need that tests lack. Such blocks are parsed: imports, flags, names.
NEEDS = (
    "minutes",
    "GPU",
    "hub",
    "network",
    "vLLM",
    "server",
    "cluster",
    "TRL",
    "verl",
    "OpenRLHF",
    "prime-rl",
    "Ray",
    "Coq",
)
# Commands of other programs that change the machine: they are checked and not run.
CHECKED = ("make", "pip", "docker", "sbatch", "apt-get", "source")
SECONDS = 600  # of a block, on a machine that does other work
NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Block:
    """A fenced block. title: the file that it is; needs: what it needs that tests lack, "" for nothing."""

    language: str
    text: str
    line: int
    title: str = ""
    needs: str = ""

    def commands(self) -> list[tuple[str, list[str]]]:
        """Return the commands of a shell block, each with the lines that it is said to print."""
        found: list[tuple[str, list[str]]] = []
        for line in self.text.replace("\\\n", " ").splitlines():
            if self.language == "bash" or line.startswith("$ "):
                command = line.removeprefix("$ ").strip()
                if command and not command.startswith("#"):
                    found.append((command, []))
            elif found:
                found[-1][1].append(line)
        return found


def pages() -> list[Path]:
    """Return the pages of the guide that are written by hand."""
    return sorted(path for path in DOCS.rglob("*.md") if path != DOCS / "README.md")


def run_pages() -> list[Path]:
    """Return the pages whose blocks are run: the README, which is the door to the guide, and the guide's."""
    return [ROOT / "README.md", *pages()]


def blocks_of(path: Path) -> list[Block]:
    """Return the blocks of a page in order."""
    text = path.read_text("utf-8")
    found = []
    for match in BLOCK.finditer(text):
        marks = {mark["name"]: mark["value"] for mark in MARK.finditer(match["marks"])}
        title = re.search(r'title="([^"]+)"', match["rest"])
        body = "".join(line.removeprefix(match["indent"]) for line in match["text"].splitlines(keepends=True))
        line = text.count("\n", 0, match.start("language")) + 1
        found.append(Block(match["language"], body, line, title[1] if title else "", marks.get("needs") or ""))
    return found


def marks_of(path: Path) -> dict[str, str]:
    """Return the marks of a page: `after` with the page whose folder it goes on in, `slow`."""
    return {mark["name"]: mark["value"] or "" for mark in MARK.finditer(path.read_text("utf-8"))}


def chains() -> list[list[Path]]:
    """Return the pages in groups that run in one folder, one after the other."""
    before = {path: DOCS / after for path in run_pages() if (after := marks_of(path).get("after"))}
    found: dict[Path, list[Path]] = {path: [path] for path in run_pages() if path not in before}
    for path in before:
        first = path
        while first in before:
            first = before[first]
        found[first].append(path)
    return [sorted(chain, key=lambda path: depth(path, before)) for chain in found.values()]


def depth(path: Path, before: dict[Path, Path]) -> tuple[int, Path]:
    """Return after how many pages a page runs; its path decides between equals."""
    count, first = 0, path
    while first in before:
        count, first = count + 1, before[first]
    return count, path


def run_page(path: Path, folder: Path) -> None:
    """Run the blocks of a page in a folder, in order. AssertionError where one fails, or prints something else."""
    for block, output, runs in run_blocks(path, folder):
        where = f"{path}, line {block.line}"
        expected = output.text.splitlines() if output else []
        for said, printed in runs:
            compare(said or expected, printed, where, exact=block.language == "python")


def run_blocks(path: Path, folder: Path) -> Iterator[tuple[Block, Block | None, list[tuple[list[str], list[str]]]]]:
    """Run the blocks of a page in a folder. Yield each with the block of its output, and what it is said to print and
    prints.
    """
    blocks = blocks_of(path)
    with Interpreter(folder) as interpreter:
        for block, following in zip(blocks, [*blocks[1:], None]):
            if block.title:
                write_file(block, folder)
                continue
            if block.needs or block.language not in RUN:
                continue
            where = f"{path}, line {block.line}"
            output = following if following and is_output(following) else None
            if block.language == "python":
                yield block, output, [([], interpreter.run(block.text, where))]
            else:
                yield block, output, list(run_shell(block, folder, where))


def fill_in_outputs(path: Path, folder: Path) -> None:
    """Run a page, and write what its blocks print into the `text` blocks after them."""
    text = path.read_text("utf-8")
    for _, output, runs in run_blocks(path, folder):
        if output is not None:
            printed = "\n".join(line for _, lines in runs for line in lines)
            text = text.replace(f"```text\n{output.text}```", f"```text\n{printed}\n```", 1)
    path.write_text(text, encoding="utf-8")


def is_output(block: Block) -> bool:
    """Return whether a block is what the one before it prints."""
    return block.language == "text" and not block.title


def write_file(block: Block, folder: Path) -> None:
    """Write a block with a title as the file that it is."""
    assert block.language in FILES, f"line {block.line}: {block.language} with a title"
    path = (folder / block.title).resolve()
    assert path.is_relative_to(folder.resolve()), f"line {block.line}: {block.title} is outside of the page's folder"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text, encoding="utf-8")


def environment() -> dict[str, str]:
    """Return the variables that a page's commands have: the repository as an installed package, and no hub."""
    offline = {"HF_HUB_OFFLINE": "1", "COLUMNS": "120", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    path = f"{programs()}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PYTHONPATH": str(ROOT), **offline, "PATH": path, warm.SOCKET: warm.service()}


@cache
def programs() -> str:
    """Return the folder of `python` and `rlvr`. The second is forked from a process that has imported what it needs."""
    folder = Path(tempfile.mkdtemp(prefix="rlvr-guide-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, words in {"rlvr": "-m tests.helpers.warm rlvr", "python": ""}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (folder / name).chmod(0o755)
    return str(folder)


def run_shell(block: Block, folder: Path, where: str) -> Iterator[tuple[list[str], list[str]]]:
    """Run a shell block, and yield for each command the lines that it is said to print, and those that it prints.

    Of a bash block, a script, all lines together. Commands that change the machine are checked and do nothing.
    """
    commands = block.commands()
    for command, _ in commands:
        check_command(command, where)
    parts = [block.text] if block.language == "bash" else [command for command, _ in commands]
    nothing = "".join(f"{name}() {{ :; }}\n" for name in CHECKED)
    script = nothing + "".join(f"{part.rstrip()}\nprintf '\\0'\n" for part in parts)
    line = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(
        line,
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    printed = done.stdout.split("\0")
    assert done.returncode == 0, (
        f"{where}: exit code {done.returncode} of `{parts[len(printed) - 1]}`\n{printed[-1][-3000:]}"
    )
    expected = [[]] if block.language == "bash" else [lines for _, lines in commands]
    yield from zip(expected, (text.splitlines() for text in printed))


def compare(expected: Sequence[str], printed: Sequence[str], where: str, *, exact: bool = False) -> None:
    """Check that the expected lines were printed, in their order; `...` stands for anything.

    Numbers may differ unless they are exact.
    """
    left = [simplify(line, exact) for line in printed]
    for line in expected:
        wanted = simplify(line, exact)
        if wanted in ("", "..."):
            continue
        parts = [re.escape(part.strip()) for part in wanted.split("...")]
        place = next((k for k, other in enumerate(left) if re.fullmatch(" ?.*? ?".join(parts), other)), None)
        assert place is not None, f"{where}: it does not print {line!r}, but\n" + "\n".join(printed[-40:])
        left = left[place + 1 :]


def simplify(line: str, exact: bool = False) -> str:
    """Return a line with one space between words, and # for each number unless they are exact."""
    words = " ".join(line.split())
    return words if exact else NUMBER.sub("#", words)


class Interpreter:
    """A Python process that runs the blocks of a page one after the other, with the same names."""

    LOOP = """
import json, sys, traceback
names = {"__name__": "page"}
for line in sys.stdin:
    code, where = json.loads(line)
    failed = False
    try:
        exec(compile(code, where, "exec"), names)
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        failed = True
    print(f"\\0{int(failed)}", flush=True)
"""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: warm.Started | None = None
        self.to: IO[str]
        self.back: IO[str]

    def __enter__(self) -> Interpreter:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.to.close()
            self.process.wait(SECONDS)
            self.back.close()

    def start(self) -> None:
        """Start the process, forked from one that has imported torch."""
        (its_input, to), (back, its_output) = os.pipe(), os.pipe()
        with open(its_input) as stdin, open(its_output, "w") as out:
            self.process = warm.start(
                [], cwd=self.folder, env=environment(), stdin=stdin, stdout=out, stderr=out, code=self.LOOP
            )
        self.to, self.back = open(to, "w"), open(back)  # noqa: SIM115

    def run(self, code: str, where: str) -> list[str]:
        """Run a block, and return the lines that it prints. AssertionError where it raises."""
        if self.process is None:
            self.start()
        self.to.write(json.dumps([code, where]) + "\n")
        self.to.flush()
        printed: list[str] = []
        for line in self.back:
            before, end, failed = line.rstrip("\n").partition("\0")
            printed += [before] if before or not end else []
            if end:
                assert failed == "0", f"{where}:\n" + "\n".join(printed[-40:])
                return printed
        raise AssertionError(f"{where}: the interpreter ended\n" + "\n".join(printed[-40:]))


# Blocks that cannot run here are parsed.


def complaints(block: Block) -> Iterator[str]:
    """Yield what is wrong with a block as far as that can be seen without running it."""
    if block.needs and block.needs not in NEEDS:
        yield f"line {block.line}: needs {block.needs!r}; expected one of {', '.join(NEEDS)}"
    if block.language not in {*RUN, *FILES, *SHOWN}:
        yield f"line {block.line}: language {block.language!r}; expected one of {', '.join({*RUN, *SHOWN})}"
    if block.language == "python":
        yield from check_python(block)
    if block.language in ("console", "bash") and not block.title:
        commands = block.commands()
        if not commands:
            yield f"line {block.line}: no command; those of a console block begin with `$ `"
        for command, _ in commands:
            yield from check_rlvr(command, block)


def check_python(block: Block) -> Iterator[str]:
    """Yield what is wrong with a block of Python: its syntax, and names of rlvr that it imports."""
    try:
        tree = ast.parse(block.text)
    except SyntaxError as error:
        yield f"line {block.line + (error.lineno or 0)}: {error.msg}"
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "rlvr":
            yield from (
                f"line {block.line + node.lineno}: {node.module} has no {alias.name}"
                for alias in node.names
                if not exists(f"{node.module}.{alias.name}")
            )
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] == "rlvr"]
            yield from (f"line {block.line + node.lineno}: no module {name}" for name in names if not exists(name))


def exists(name: str) -> bool:
    """Return whether a dotted name of rlvr can be imported, a field of a class included."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            fields = {*getattr(found, "__annotations__", ()), *getattr(found, "__dataclass_fields__", ())}
            if not hasattr(found, part) and part in fields:
                return True
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def check_rlvr(command: str, block: Block) -> Iterator[str]:
    """Yield what `rlvr` says of a command line, without running it."""
    for printed in commands_of_line(command):
        if said := complaint(Printed(printed, True)):
            yield f"line {block.line}: {command}: {said}"


def check_command(command: str, where: str) -> None:
    """Check a command that is not run: a target of the Makefile, the extras that pip installs."""
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        targets = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
        makefile = (ROOT / "Makefile").read_text("utf-8")
        missing = [name for name in targets if not re.search(rf"^{re.escape(name)}:", makefile, re.MULTILINE)]
        assert not missing, f"{where}: make has no target {missing[0]}"
    if words[0] == "pip":
        known = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
        named = {
            name
            for group in re.findall(r"(?:^|\s)['\"]?(?:\.|rlvr)\[([\w,-]+)\]", command)
            for name in group.split(",")
        }
        assert named <= {*known}, f"{where}: no extra {', '.join(named - {*known})}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            fill_in_outputs(Path(name).resolve(), Path(folder))

"""Commands that the project prints: where they stand, and whether `rlvr` would take them."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlvr.commands.arguments import parse, take_option
from rlvr.commands.cli import COMMANDS
from rlvr.commands.completion import arguments_of
from rlvr.commands.task import apply_verifier, check_names, make_pack
from rlvr.commands.train import SFTRun, load_recipe, recipe_config, run_config
from rlvr.commands.verify_resume import settings_of
from rlvr.config.pipeline import PipelineConfig
from rlvr.config.reward_model import RewardConfig
from tests.helpers.files import EXCERPTS, ROOT

SOURCES = ("docs", "rlvr", "verifiers", "tasks", "environments", "sandbox", "recipes")
BLOCK = re.compile(r"^ *```(\w+)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
RUNNERS = re.compile(
    r"^(?:docker run [^`]*?|torchrun --nproc-per-node \S+ -m --|(?:\S*python|accelerate launch) -m) rlvr\b"
)
# What stands for a value of the reader's, by the flag before it; "" where none is before it.
STANDING_FOR = {
    "--algo": "ppo",
    "--sampler": "vllm",
    "--monitor": "math",
    "--task": "arithmetic",
    "--run.task": "arithmetic",
    "--verifier": "math",
    "--run.verifier": "math",
    "--environment": "tools",
    "--run.environment": "tools",
    "--kill-after": "2",
    "--dtype": "bfloat16",
    "--against": "math500",
}
WITH_RECIPE = ("train", "sft", "rm", "pipeline", "show-prompt", "verify-resume")
# What a command needs, where a text names it without: words that come first, and flags with their values.
RECIPES = {"rm": "rm_pairs", "pipeline": "instructgpt"}
FIRST = {"profile": ["arithmetic"], "audit": ["arithmetic"], "completion": ["bash"], "serve": ["some/model"]}
FIRST["new"] = ["verifier", "mine"]
FIRST |= {"export": ["RUN", "OUT"], "push": ["RUN", "me/model"], "merge": ["RUN", "OUT"], "grade": ["FILE.jsonl"]}
FIRST |= {name: ["RUN"] for name in ("regrade", "report", "compare")}
FLAGS = {name: {"--model": "tiny"} for name in ("eval", "sample", "profile")} | {"grade": {"--verifier": "math"}}
FLAGS["eval"] = FLAGS["sample"] = {"--model": "tiny", "--task": "arithmetic"}
# With a flag of these another one must be there, which a text that is about the first leaves out.
TOGETHER = {"--selector": {"--samples": "4", "--k": "4"}, "--samples": {}, "--k": {"--samples": "64"}}


@dataclass(frozen=True)
class Printed:
    """A command line. whole: it is one to type, and not named in a sentence, which may leave out what it needs."""

    line: str
    whole: bool


def of_markdown(text: str) -> Iterator[Printed]:
    """Yield the command lines of a Markdown text: those of its shell blocks, and inline code."""
    for kind, block in BLOCK.findall(text):
        if kind in ("bash", "sh", "console"):
            yield from (Printed(line, True) for line in block.replace("\\\n", " ").splitlines())
    yield from spans(BLOCK.sub("", text))


def spans(text: str) -> Iterator[Printed]:
    """Yield the inline code of a text."""
    yield from (Printed(" ".join(span.split()), False) for span in re.findall(r"`([^`]+)`", text))


def of_python(source: str) -> Iterator[Printed]:
    """Yield the command lines in the texts of a Python file: indented or printed lines, and inline code.

    What an f-string fills in is the word FILLED.
    """
    tree = ast.parse(source)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "FILLED" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            text = node.value
        else:
            continue
        lines = re.sub(r"\\\n\s*", " ", text).splitlines()
        yield from (Printed(line, True) for line in lines if re.match(r"\s+(\S+ -m )?rlvr ", line))
        yield from spans(text)


def of_notebook(text: str) -> Iterator[Printed]:
    """Yield the command lines in the Markdown of a notebook."""
    for cell in json.loads(text)["cells"]:
        if cell["cell_type"] == "markdown":
            yield from of_markdown("".join(cell["source"]))


def of_comments(text: str) -> Iterator[Printed]:
    """Yield the command lines in the comments of a shell script, a job file or a Dockerfile."""
    yield from (Printed(line.lstrip("# "), True) for line in text.splitlines() if line.startswith("#   "))


READERS = {
    ".md": of_markdown,
    ".yml": of_markdown,
    ".py": of_python,
    ".ipynb": of_notebook,
    ".sh": of_comments,
    ".sbatch": of_comments,
    "": of_comments,  # a Dockerfile
}


def sources() -> list[Path]:
    """Return the files of the project that print commands, or may."""
    found = [*ROOT.glob("*.md"), *(ROOT / ".github").rglob("*.md"), *(ROOT / ".github").rglob("*.yml")]
    for folder in (*SOURCES, "benchmarks", "tests"):
        for path in (ROOT / folder).rglob("*"):
            linked = any(parent.is_symlink() for parent in path.parents)
            own = folder != "tests" or path.name == "README.md"
            if path.is_file() and path.suffix in READERS and own and not linked and "__pycache__" not in path.parts:
                found.append(path)
    return sorted(found)


def commands_of(path: Path) -> list[Printed]:
    """Return the commands of the project that a file prints, each once, as `rlvr COMMAND ...`."""
    found: dict[Printed, None] = {}
    text = path.read_text("utf-8")
    for printed in READERS[path.suffix](text) if re.search(r"rlvr\s", text) else ():
        found |= {Printed(line, printed.whole): None for line in commands_of_line(printed.line)}
    return list(found)


def commands_of_line(text: str) -> list[str]:
    """Return the command of the project on a line, as `rlvr COMMAND ...`; [] where it has none."""
    line = RUNNERS.sub("rlvr", text.strip().removeprefix("$ "))
    with contextlib.suppress(ValueError):  # a quotation mark that is not closed: it is no line of a shell
        words = shlex.split(line, comments=True)
        if words[:1] == ["rlvr"] and len(words) > 1 and re.fullmatch(r"[a-z-]+", words[1]):
            return [shlex.join(words)]
    return []


def fill_in(words: list[str], *, whole: bool = True) -> list[str]:
    """Return a command's words with what stands for the reader's values replaced, without `...` and brackets.

    What a command needs is added where it is named only (`whole` False).
    """
    ends = next((place for place, word in enumerate(words) if word in (">", ">>", "|", "&&")), len(words))
    stands = [
        STANDING_FOR[words[k - 1]] if word == "..." and words[k - 1] in STANDING_FOR else word
        for k, word in enumerate(words[:ends])
    ]
    bare = [word.strip("[]").removesuffix("...") for word in stands if word != "[flags]"]
    command, *rest = ("tiny_math" if word == "RECIPE" and k > 1 else word for k, word in enumerate(bare) if word)
    if command in WITH_RECIPE and (rest[:1] and (rest[0].isupper() or rest[0].endswith(".py"))):
        rest[0] = RECIPES.get(command, "tiny_math")
    elif command in WITH_RECIPE and not whole and not (rest[:1] and not rest[0].startswith("-")):
        rest = [RECIPES.get(command, "tiny_math"), *rest]
    if command in ("profile", "audit", "completion", "new") and rest[:1] and (rest[0].isupper() or "|" in rest[0]):
        rest[0] = FIRST[command][0]
    if not whole:
        if all(word.startswith("-") for word in rest[:1]) and not any(word.endswith(".jsonl") for word in rest):
            rest = [*FIRST.get(command, ()), *rest]
        added = dict(FLAGS.get(command, {}))
        for flag in rest:
            added |= TOGETHER.get(flag, {})
        rest += [word for flag, value in added.items() if flag not in rest for word in (flag, value)]
    for place, word in enumerate(rest):
        before = rest[place - 1] if place else ""
        if word.isupper() and before in STANDING_FOR:
            rest[place] = STANDING_FOR[before]
        elif re.fullmatch(r"N|K|FILLED", word) and before not in ("", "--model", "--url"):
            rest[place] = "2"
    return [command, *rest]


def complaint(printed: Printed) -> str:
    """Return what is wrong with a command; "" where it would run, given its files.

    A sentence may name a flag without its value, and a command without what it needs.
    """
    command, *rest = fill_in(shlex.split(printed.line)[1:], whole=printed.whole)
    if command not in COMMANDS:
        return "" if command in ("--help", "--version") else f"no command {command!r}"
    try:
        read(command, rest)
    except (SystemExit, FileNotFoundError):  # of --help, and files of the reader's
        return ""
    except (ValueError, LookupError) as error:
        unsaid = "" if printed.whole else r"|needs? a value|expected a value|must be given"
        allowed = r"no such (file|folder)|no module" + unsaid
        return "" if re.search(allowed, str(error)) else str(error)
    return ""


def read(command: str, rest: list[str]) -> None:
    """Read a command's flags as the command does, and check its settings and names. Raises what it raises."""
    if "--plan" in rest:
        recipe, rest = take_option(rest, "--plan")
        command, rest = "train", [str(recipe), *rest]
        for flag in ("--gpus", "--gib"):
            _, rest = take_option(rest, flag)
    if command in WITH_RECIPE:
        read_recipe(command, rest[0], rest[1:])
    else:
        args = parse(arguments_of(command), rest, prog=f"rlvr {command}")
        if hasattr(args, "rules"):
            args.check()
        check_names(args)


def read_recipe(command: str, name: str, flags: list[str]) -> None:
    """Read and check the settings of a recipe with flags, as far as that needs no files."""
    prog = f"rlvr {command} {name}"
    if command == "pipeline":
        module = load_recipe(name, PipelineConfig)
        config = parse(PipelineConfig, flags, prog=prog, default=module.CONFIG)
        with contextlib.redirect_stdout(None):
            run_config(module, dataclasses.replace(config, stages=True))
        return
    if command == "rm":
        config = recipe_config(load_recipe(name, RewardConfig), flags, prog)
        check_names(config)
        return
    if command == "verify-resume":
        _, flags = take_option(flags, "--kill-after")
        settings_of(name, flags)
        return
    if command == "show-prompt":
        for option in ("--id", "--completion"):
            _, flags = take_option(flags, option)
        flags = [flag for flag in flags if flag != "--teacher"]
    config = recipe_config(load_recipe(name), flags, prog, SFTRun if command == "sft" else None)
    config.check()
    check_names(config)
    if config.run.verifier is None and config.run.verifier_option and (EXCERPTS / config.run.task).exists():
        run = dataclasses.replace(config.run, data=EXCERPTS / config.run.task)
        apply_verifier(make_pack(run, "--run."), run, "--run.")

"""Reading a program out of a completion."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from rlvr.verifiers.code.bounds import parse_bounded
from rlvr.verifiers.extract import BYTE_ORDER_MARK
from rlvr.verifiers.extract.fences import fenced_blocks

MAX_COMPLETION = 1 << 20  # characters; a longer one is not searched for a program
# The first words of lines that make a program of a text.
_STATEMENT = re.compile(
    r"^[ \t]*(?:def|class|import|from|for|while|if|with|try|return|print|async|@\w+)\b|^[\w., \t]*[-+*/]?=[^=]|\w\(",
    re.MULTILINE,
)
_PYTHON = frozenset(("", "python", "py", "python3", "python2"))


def program_of(completion: str, names: Sequence[str] = ()) -> str:
    """Return the last python fence of a completion, else the whole text.

    Text before a closing </think> is ignored. A fence without a language counts where it looks like a program, or where
    there is no other. Of several, the last that binds one of `names`, which the tests use, is preferred: the ones after
    it show how to call it, or what it prints.
    """
    answer = completion.rpartition("</think>")[2].removeprefix(BYTE_ORDER_MARK)
    blocks = [(language, content) for language, content in fenced_blocks(answer) if language in _PYTHON]
    programs = [content for language, content in blocks if language or (content and _STATEMENT.search(content))]
    contents = programs or [content for _, content in blocks]
    if not contents:
        return answer
    name = f"(?:{'|'.join(map(re.escape, names))})"
    bound = re.compile(rf"^(?:(?:async +)?(?:def|class) +{name}\b|{name} *(?::[^=\n]*)?=[^=])", re.MULTILINE)
    return next((content for content in reversed(contents) if names and bound.search(content)), contents[-1])


def defines(program: str, name: str) -> bool:
    """Whether a program binds `name`. One that does not parse, or is too costly to parse, is searched as text."""
    tree = parse_bounded(program)
    if tree is None:
        return re.search(rf"^(async )?(def|class) {re.escape(name)}\b", program, re.MULTILINE) is not None
    bound = set()
    for statement in tree.body:
        for node in ast.walk(statement):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                bound.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                bound.add(node.id)
            elif isinstance(node, ast.alias):
                bound.add(node.asname or node.name)
    return name in bound


def imports(program: str, package: str) -> bool:
    """Whether a line of a program imports a package."""
    return re.search(rf"^[ \t]*(?:import|from) +{re.escape(package)}\b", program, re.MULTILINE) is not None


def completed(program: str, prefix: str, entry: str) -> str:
    """Return `program`, after `prefix` where it does not define `entry`: a body without its `def` line."""
    if not prefix or not entry or defines(program, entry):
        return program
    return prefix + program


def prompt_prelude(prompt: str, entry: str) -> str:
    """Return the imports and helper functions of a HumanEval prompt, without the function to write."""
    try:
        tree = ast.parse(prompt + "\n    pass\n")
    except SyntaxError as error:
        raise ValueError(f"the prompt is not Python that ends with a function: {error}") from error
    kept = [s for s in tree.body if not (isinstance(s, ast.FunctionDef) and s.name == entry)]
    return "\n".join(ast.unparse(statement) for statement in kept)

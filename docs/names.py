"""Names of the code in the text of a page become links to the reference.

| written as inline code | leads to |
|---|---|
| `rlvr.algo.losses.cispo` | the API |
| `rlvr/algo/losses.py` | its module in the API |
| `--algo.kl-coef`, `--algo.kl-coef 0.1` | the setting |
| `rlvr grade` | the command |

A name that the reference lacks fails the build.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from .reference.settings import page_of_setting

FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2[ \t]*$|<!--.*?-->", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<![`\[\\])`([^`\n]+)`(?![`\]])")
DOTTED = re.compile(r"(rlvr(?:\.[A-Za-z_]\w*)+)(?:\(.*\))?")
PATH = re.compile(r"((?:rlvr|verifiers|tasks|environments|sandbox)/[\w/]+)\.py")
SETTING = re.compile(r"--([a-z]+\.[a-z][\w-]*)(?:[ =].*)?")
COMMAND = re.compile(r"rlvr ([a-z]+(?:-[a-z]+)*)")
NOT_IN_API = ("rlvr.commands", "rlvr.recipes", "rlvr.__main__")


def link_names(text: str, page: str) -> str:
    """Return a page's text with names of the code as links. page: its path, to which links are relative."""
    pieces, end = list[str](), 0
    for fence in FENCE.finditer(text):
        pieces += [SPAN.sub(lambda span: link(span, page), text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*pieces, SPAN.sub(lambda span: link(span, page), text[end:])])


def link(span: re.Match[str], page: str) -> str:
    """Return a span of inline code, as a link where it is a name of the reference."""
    name = span[1]
    if (found := DOTTED.fullmatch(name)) or (found := PATH.fullmatch(name)):
        dotted = found[1].replace("/", ".").removesuffix(".__init__")
        dotted = dotted if dotted.startswith("rlvr.") else f"rlvr.{dotted}"
        return span[0] if dotted.startswith(NOT_IN_API) else f"[`{name}`][{dotted}]"
    if found := SETTING.fullmatch(name):
        setting = found[1].replace("_", "-")
        return f"[`{name}`]({between(page, page_of_setting(setting, page))}#{setting})"
    if found := COMMAND.fullmatch(name):
        return f"[`{name}`]({between(page, 'reference/commands.md')}#rlvr-{found[1]})"
    return span[0]


def between(page: str, target: str) -> str:
    """Return the relative path from one page to another."""
    return os.path.relpath(target, PurePosixPath(page).parent)


def spans_of(text: str) -> Iterator[str]:
    """Yield the inline code of a text."""
    yield from SPAN.findall(FENCE.sub("", text))

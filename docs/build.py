"""Build the guide: `python -m docs.build` lays its pages out in build/guide, and Zensical writes build/docs.

The pages are those of this folder and those that docs/reference makes from the code. A warning is an error: of a link
that leads nowhere, or of a name of the code that does not exist. Nothing is loaded from another host.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from .names import link_names
from .reference import make_pages

FOLDER = Path(__file__).resolve().parent
BUILD = FOLDER.parent / "build"
LEFT_OUT = ("README.md",)  # for those who write pages
API = '"reference/api/index.md"'
SHIM = "https://unpkg.com/iframe-worker/shim"  # lets the search work in a page that is opened as a file
OWN_SHIM = "assets/iframe-worker.js"
DEEPEST = 3  # heading of a module's functions and classes on a page of the API


def main() -> None:
    """Build the guide. Exit with Zensical's code where it finds something wrong."""
    start = time.monotonic()
    try:
        pages = {path: link_names(text, path) for path, text in {**own_pages(), **make_pages()}.items()}
    except LookupError as error:  # a setting that does not exist
        sys.exit(f"error: {error}")
    lay_out(pages, BUILD / "guide")
    write_config(pages, BUILD / "zensical.toml")
    shutil.rmtree(BUILD / "docs", ignore_errors=True)
    # Clean: its cache does not see that a docstring has changed.
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=BUILD, env={**os.environ, "NO_COLOR": "1"}, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    written = use_own_files(BUILD / "docs")
    put_guide_first(BUILD / "docs")
    print(f"{BUILD / 'docs' / 'index.html'}: {written} pages in {time.monotonic() - start:.0f} s")


def own_pages() -> dict[str, str]:
    """Return the text of each page of this folder, by its path."""
    found = {path.relative_to(FOLDER).as_posix(): path for path in sorted(FOLDER.rglob("*.md"))}
    return {name: path.read_text("utf-8") for name, path in found.items() if name not in LEFT_OUT}


def lay_out(pages: Mapping[str, str], folder: Path) -> None:
    """Write the pages into a folder, with the pictures beside them."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(FOLDER / "assets", folder / "assets")
    for name, text in pages.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def write_config(pages: Mapping[str, str], file: Path) -> None:
    """Write Zensical's settings with the pages of the API, and the repository where a workflow names it."""
    text = (FOLDER / "zensical.toml").read_text("utf-8")
    api = [
        f"{{ {json.dumps(Path(name).stem)} = {json.dumps(name)} }}"
        for name in pages
        if name.startswith("reference/api/rlvr")
    ]
    text = text.replace(API, ", ".join([API, *api]))
    if repository := os.environ.get("GITHUB_REPOSITORY"):
        owner, _, name = repository.partition("/")
        there = f'repo_url = "https://github.com/{repository}"\nsite_url = "https://{owner}.github.io/{name}/"\n'
        text = text.replace("[project]\n", f"[project]\n{there}", 1)
    file.write_text(text, encoding="utf-8")


def use_own_files(site: Path) -> int:
    """Let every page load the search's shim from the site. Return the number of pages.

    Exits where a page loads anything else from another host.
    """
    pages = sorted(site.rglob("*.html"))
    for page in pages:
        text = page.read_text("utf-8").replace(SHIM, os.path.relpath(site / OWN_SHIM, page.parent))
        page.write_text(text, encoding="utf-8")
        if foreign := re.findall(
            r'<(?:script|img|iframe)[^>]*\ssrc="(https?:[^"]+)|<link[^>]*rel="stylesheet"[^>]*href="(https?:[^"]+)',
            text,
        ):
            sys.exit(f"error: {page} loads {foreign[0]}; put the file into docs/assets")
    return len(pages)


def put_guide_first(site: Path) -> None:
    """Let searches find modules, classes and functions of the API by their whole names, and none of their members.

    A name in a title counts less the longer the title is, so that pages of the guide come first.
    """
    index = json.loads((site / "search.json").read_text("utf-8"))
    kept = []
    for item in index["items"]:
        page, _, name = item["location"].partition("#")
        if page.startswith("reference/api/rlvr"):
            if item["level"] > DEEPEST:
                continue
            item["title"] = name or item["title"]
        kept.append(item)
    text = json.dumps({**index, "items": kept}, ensure_ascii=False)
    (site / "search.json").write_text(text, encoding="utf-8")
    (site / "search.js").write_text(f"var __index = {text};", encoding="utf-8")


if __name__ == "__main__":
    main()

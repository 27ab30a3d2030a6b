"""The pages of the reference, made from the code when the guide is built: a module for each page or folder of pages."""

from __future__ import annotations

from . import algorithms, api, catalogue, commands, files, metrics, settings, verdicts

MAKERS = (settings, commands, algorithms, metrics, verdicts, catalogue, files, api)


def make_pages() -> dict[str, str]:
    """Return the text of each generated page, by its path below docs/."""
    found: dict[str, str] = {}
    for maker in MAKERS:
        found |= {f"reference/{name}": text for name, text in maker.pages().items()}
    return found

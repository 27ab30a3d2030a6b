"""Folders that are made once and kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr.core.files.cache import cache_root, make_by_content, make_once


def write(text: str):
    return lambda folder: (folder / "file").write_text(text)


def test_the_cache_is_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "rlvr"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_root() == Path.home() / ".cache" / "rlvr"


def test_a_folder_is_made_once(tmp_path):
    """Also where another process makes it meanwhile; what is left over is deleted."""
    folder = tmp_path / "a" / "b"
    assert make_once(folder, write("first")) == folder
    make_once(folder, write("second"))
    assert (folder / "file").read_text() == "first"

    def make_while_another_does(path: Path) -> None:
        make_once(tmp_path / "a" / "c", write("faster"))
        write("slower")(path)

    make_once(tmp_path / "a" / "c", make_while_another_does)
    assert (tmp_path / "a" / "c" / "file").read_text() == "faster"
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["b", "c"]


def test_a_failure_leaves_nothing(tmp_path):
    def fail(path: Path) -> None:
        write("half")(path)
        raise RuntimeError("full")

    with pytest.raises(RuntimeError, match="full"):
        make_once(tmp_path / "folder", fail)
    assert not any(tmp_path.iterdir())


def test_a_folder_is_named_by_its_content(tmp_path):
    """Equal files, the same folder; another name or text, another one."""
    one, again = (make_by_content(tmp_path, write("text")) for _ in range(2))
    assert one == again
    assert (one / "file").read_text() == "text"
    others = [write("other"), lambda folder: (folder / "name").write_text("text")]
    assert len({one, *(make_by_content(tmp_path, make) for make in others)}) == 3
    assert len(list(tmp_path.iterdir())) == 3

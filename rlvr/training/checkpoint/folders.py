from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

STEP = re.compile(r"step-(\d+)")


DAMAGED = ".damaged"


UNFINISHED = ".training"


def checkpoint_folder(out_dir: Path, step: int) -> Path:
    """Return the folder of the checkpoint after `step` steps."""
    return out_dir / "checkpoints" / f"step-{step:06d}"


def unfinished(made: Path) -> Path:
    """Return the folder that holds the checkpoints of a supervised training until its model is whole, in `made`."""
    return made.with_name(made.name + UNFINISHED)


def list_checkpoints(out_dir: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints as (step, folder), oldest first, damaged ones too (see `damage`)."""
    found = []
    for folder in (out_dir / "checkpoints").glob("step-*"):
        match = STEP.fullmatch(folder.name)
        if match:
            found.append((int(match[1]), folder))
    return sorted(found)


def list_whole(out_dir: Path, say: Callable[[str], None]) -> list[tuple[int, Path]]:
    """Return the checkpoints that are not damaged as (step, folder), oldest first. `say` gets a line for each other."""
    found = []
    for step, folder in list_checkpoints(out_dir):
        reason = damage(folder)
        if reason is None:
            found.append((step, folder))
        else:
            say(f"{folder} is damaged ({reason}), and left out")
    return found


def newest_whole(out_dir: Path, say: Callable[[str], None], *, move: bool = True) -> tuple[int, Path] | None:
    """Return the newest checkpoint that is not damaged, as (step, folder); None where there are no checkpoints.

    Newer, damaged ones are reported with `say`, and renamed (`move`) so that nothing takes them for checkpoints. Raises
    ValueError where all are damaged.
    """
    found = list_checkpoints(out_dir)
    damaged: list[tuple[Path, str]] = []
    for step, folder in reversed(found):
        reason = damage(folder)
        if reason is None:
            for other, other_reason in damaged:
                say(f"{other} is damaged ({other_reason}); going back to step {step}")
                if move:
                    set_aside(other)
            return step, folder
        damaged.append((folder, reason))
    if damaged:
        newest, reason = damaged[0][0].name, damaged[0][1]
        raise ValueError(
            f"every checkpoint of {out_dir} is damaged ({newest}: {reason}); restore one from a copy, or start "
            "again with --run.overwrite"
        )
    return None


def damage(folder: Path) -> str | None:
    """Return how a checkpoint is damaged, None where it is not: a file is missing or has the wrong size.

    Compares the sizes of files with those in state.json, and of safetensors files with their headers.
    """
    try:
        state = json.loads((folder / "state.json").read_text("utf-8"))
        for name, size in state.get("files", {}).items():
            found = (folder / name).stat().st_size
            if found != size:
                return f"{name} has {found} bytes of {size}"
        for path in sorted(folder.glob("*.safetensors")):
            expected = safetensors_size(path)
            if path.stat().st_size != expected:
                return f"{path.name} has {path.stat().st_size} bytes of {expected}"
        if not any(folder.glob("*.safetensors")):
            return "no weights"
    except FileNotFoundError as error:
        return f"no {Path(error.filename).name}"
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        return f"state.json or a header cannot be read: {error}"
    return None


def safetensors_size(path: Path) -> int:
    """Return the size that a safetensors file has by its header (github.com/huggingface/safetensors, "Format").

    Raises ValueError where the header is cut off or is not JSON.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= path.stat().st_size - 8:
            raise ValueError(f"{path.name} has a header of {length} bytes")
        header = json.loads(file.read(length))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return 8 + length + max(ends, default=0)


def set_aside(folder: Path) -> None:
    """Rename a damaged checkpoint, so that it no longer counts as one."""
    aside = folder.with_name(folder.name + DAMAGED)
    shutil.rmtree(aside, ignore_errors=True)
    os.replace(folder, aside)


def delete_old_checkpoints(out_dir: Path, keep: int, others: Collection[int] = ()) -> None:
    """Delete all checkpoints but the last `keep` and those of the steps `others`."""
    for step, folder in list_checkpoints(out_dir)[:-keep]:
        if step not in others:
            shutil.rmtree(folder)

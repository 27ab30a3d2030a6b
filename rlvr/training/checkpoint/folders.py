"""The folders of checkpoints: where they lie, which are whole, which measured best. Nothing here loads torch."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from rlvr.core.files.write import PARTIAL
from rlvr.runs.conclusions import Evaluation, group_comparable
from rlvr.runs.records import is_graded, measured_name, number_since_best, quality

STEP = re.compile(r"step-(\d+)")
DAMAGED = ".damaged"
UNFINISHED = ".training"


def checkpoint_folder(out_dir: Path, step: int) -> Path:
    return out_dir / "checkpoints" / f"step-{step:06d}"


def folder_of_unfinished(made: Path) -> Path:
    """Return the folder that holds the checkpoints of a supervised training until its model is whole, in `made`."""
    return made.with_name(made.name + UNFINISHED)


def list_checkpoints(out_dir: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints as (step, folder), oldest first, damaged ones too (see `find_damage`)."""
    folders = (out_dir / "checkpoints").glob("step-*")
    return sorted((int(match[1]), folder) for folder in folders if (match := STEP.fullmatch(folder.name)))


def list_whole(out_dir: Path, say: Callable[[str], None]) -> list[tuple[int, Path]]:
    """Return the checkpoints that are not damaged as (step, folder), oldest first. `say` gets a line for each other."""
    found = [(step, folder, find_damage(folder)) for step, folder in list_checkpoints(out_dir)]
    for _, folder, reason in found:
        if reason is not None:
            say(f"{folder} is damaged ({reason}), and left out")
    return [(step, folder) for step, folder, reason in found if reason is None]


def find_newest_whole(out_dir: Path, say: Callable[[str], None], *, move: bool = True) -> tuple[int, Path] | None:
    """Return the newest checkpoint that is not damaged, as (step, folder); None without checkpoints.

    Newer, damaged ones are reported with `say` and renamed (if `move`). Raises ValueError where all are damaged.
    """
    damaged: list[tuple[Path, str]] = []
    for step, folder in reversed(list_checkpoints(out_dir)):
        reason = find_damage(folder)
        if reason is not None:
            damaged.append((folder, reason))
            continue
        for other, why in damaged:
            say(f"{other} is damaged ({why}); going back to step {step}")
            if move:  # so that it no longer counts as a checkpoint
                aside = other.with_name(other.name + DAMAGED)
                shutil.rmtree(aside, ignore_errors=True)
                os.replace(other, aside)
        return step, folder
    if damaged:
        raise ValueError(
            f"every checkpoint of {out_dir} is damaged ({damaged[0][0].name}: {damaged[0][1]}); restore one from a "
            "copy, or start again with --run.overwrite"
        )
    return None


def find_damage(folder: Path) -> str | None:
    """Return how a checkpoint is damaged, None if it is not: a file is missing, or its size differs from state.json or
    from the header of its safetensors file.
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


def delete_old_checkpoints(out_dir: Path, keep: int, others: Collection[int] = ()) -> None:
    """Delete all checkpoints but the last `keep` and those of the steps `others`."""
    for step, folder in list_checkpoints(out_dir)[:-keep]:
        if step not in others:
            shutil.rmtree(folder)


def best_steps(out_dir: Path, evaluations: Sequence[Evaluation], steps: Collection[int]) -> list[int]:
    """Return the step of each era's best evaluation among `steps`; of equal ones the earliest."""
    found = [[e for e in era if e["step"] in steps] for era in group_comparable(out_dir, evaluations)]
    return [max(era, key=quality)["step"] for era in found if era]


def count_since_best(out_dir: Path, evaluations: Sequence[Evaluation]) -> int:
    """Return how many evaluations have been made since the best one, of those that can be compared with the last."""
    return next((number_since_best(era) for era in group_comparable(out_dir, evaluations)[-1:]), 0)


def kept_steps(out_dir: Path) -> set[int]:
    """Return the steps whose weights exist: those of the checkpoints, and 0 for the model before training."""
    return {0, *(step for step, _ in list_checkpoints(out_dir))}


def describe_checkpoints(out_dir: Path, evaluations: Sequence[Evaluation]) -> list[str]:
    """Return lines for the end of a run: the last checkpoint, and the best one where that is another."""
    steps = kept_steps(out_dir)
    last = max(steps)
    if last == 0:
        return []
    by_step = {e["step"]: e for e in evaluations}
    best = best_steps(out_dir, evaluations, steps)[-1:]
    name = "last checkpoint, and the best" if best == [last] else "last checkpoint"
    lines = [f"{name}: {checkpoint_folder(out_dir, last)}{describe_result(by_step.get(last))}"]
    if best and best != [last]:
        start = out_dir / "start"
        origin = start if start.exists() else "the model before the first step"
        where = checkpoint_folder(out_dir, best[0]) if best[0] else origin
        lines.append(f"best checkpoint: {where}{describe_result(by_step[best[0]])}")
    return lines


def describe_result(evaluation: Evaluation | None) -> str:
    """Return an evaluation's result in words that follow a path."""
    if evaluation is None:
        return ""
    name = measured_name(evaluation)
    score = f", score {evaluation['score']:.3f}" if is_graded([evaluation]) else ""
    return f", held-out {name} {evaluation[name]:.3f}{score}"


def has_checkpoints(folder: Path) -> bool:
    """Return whether the folder of a run has checkpoints, even damaged ones."""
    return any(not path.name.endswith(PARTIAL) for path in folder.glob("checkpoints/step-*"))


def has_fine_tuning(folder: Path) -> bool:
    """Return whether the folder of a run has a fine-tuned model, or checkpoints of the fine-tuning."""
    return is_fine_tuned(folder) or has_checkpoints(folder_of_unfinished(folder / "start"))


def is_fine_tuned(folder: Path) -> bool:
    """Return whether the folder of a run has a fine-tuned model to start from."""
    return (folder / "start" / "state.json").is_file()


def newest_step(out_dir: Path) -> int:
    """Return the step of the newest undamaged checkpoint; 0 if there is none."""
    return max((step for step, folder in list_checkpoints(out_dir) if not find_damage(folder)), default=0)

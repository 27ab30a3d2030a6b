"""`rlvr export RUN DIR` and `rlvr push RUN ORG/NAME`: a checkpoint of a run as a model with a card."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.core.files.models import ADAPTER_CONFIG, OWN_BASE, TOKENIZER_FILES, is_hub_name
from rlvr.core.files.write import PARTIAL, check_place, name_in_errors
from rlvr.core.printable import in_one_line, note, without_secrets
from rlvr.core.types import RunError
from rlvr.runs.conclusions import conclusions_of, ended_below, group_comparable
from rlvr.runs.folder import TRAINING, read_record
from rlvr.runs.reading import read_lines
from rlvr.runs.records import quality

from .arguments import Positional, parse
from .model_card import CardFacts, licence_of, model_card

PRIVATE = ("out_dir", "url", "tracker_project", "tracker_name", "history")  # settings that are left out
# key= before a value, and the @ before the name of a file that it is read from.
KEY_AND_VALUE = re.compile(r"(?P<before>(?:[\w.-]+=)*@?)(?P<value>.*)", re.DOTALL)
ADDRESS = re.compile(r"[a-zA-Z][\w+.-]*://|[\w.-]+:\d{2,5}(?:/|$)")
LOCAL = re.compile(r"[/~\\]|\.{1,2}/|[a-zA-Z]:[/\\]")
SLASH, SLASHES = "/\\", r"[/\\]"
PLACE = "[address]"
# Files of a model that an upload replaces. Left there, they would be loaded with the new ones or instead of them.
MODEL_FILES = (
    *("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*config.json"),
    *TOKENIZER_FILES,
)
WORDS = ("system_prompt", "stop")  # texts that a model reads or says, in which nothing is a path
STATE = (
    "state.json",
    "optimizer*",
    "critic*",
    "teacher*",
    "ahead.jsonl",
)  # files of a checkpoint that only a resume needs


@dataclass(frozen=True)
class ExportArgs:
    """Write a checkpoint of a run as transformers loads it, with its tokenizer and a model card made from the run."""

    run: Positional[Path]
    """The run's folder."""
    out: Positional[Path]
    """Folder to write: a new one."""
    checkpoint: str = "best"
    """best (by held-out pass@k; the last where nothing was measured), last, a step, or start (the fine-tuned model)."""


@dataclass(frozen=True)
class PushArgs:
    """Upload what `rlvr export` writes to a model repository of the hub (HF_ENDPOINT, or huggingface.co). The token is
    that of `hf auth login`, or HF_TOKEN."""

    run: Positional[Path]
    """The run's folder."""
    repo: Positional[str]
    """Repository, as ORG/NAME; it is made where it does not exist."""
    checkpoint: str = "best"
    """best (by held-out pass@k; the last where nothing was measured), last, a step, or start (the fine-tuned model)."""
    public: bool = False
    """Make a repository that does not exist yet public, not private."""
    update: bool = False
    """Commit to a repository that exists; it is refused otherwise."""


def export_main(argv: Sequence[str]) -> int:
    args = parse(ExportArgs, argv, prog="rlvr export")
    check_new(args.out, "rlvr export:")
    step, folder = find_checkpoint(args.run, args.checkpoint)
    write_export(args.run, step, folder, args.out, chosen=args.checkpoint)
    print(f"{args.out}: {folder} with a model card")
    if base := own_base(folder):
        print(f"it is an adapter, and loads where {base} is; `rlvr merge {args.out} OUT` makes a whole model of it")
    return 0


def push_main(argv: Sequence[str]) -> int:
    from huggingface_hub import HfApi

    args = parse(PushArgs, argv, prog="rlvr push")
    if not is_hub_name(args.repo):
        raise ValueError(f"{args.repo!r:.80} is no name of a repository on the hub; expected ORG/NAME")
    step, folder = find_checkpoint(args.run, args.checkpoint)
    if base := own_base(folder):
        raise ValueError(
            f"{folder} is an adapter for a model in a folder of this machine, {base}; "
            f"merge it (rlvr merge {folder} OUT) and upload that"
        )
    api = HfApi()
    with tempfile.TemporaryDirectory(prefix="rlvr-push-") as place:
        out = Path(place) / "model"
        write_export(args.run, step, folder, out, name=args.repo.partition("/")[2] or args.repo, chosen=args.checkpoint)
        exists = ask_hub(args.repo, lambda: api.repo_exists(args.repo))
        if exists and not args.update:
            raise ValueError(f"the repository {args.repo} exists; --update commits to it")

        def upload() -> Any:
            if not exists:
                api.create_repo(args.repo, private=not args.public)
            return api.upload_folder(
                repo_id=args.repo,
                folder_path=out,
                commit_message=f"Step {step} of {args.run.resolve().name} (rlvr)",
                delete_patterns=list(MODEL_FILES) if exists else None,
            )

        commit = ask_hub(args.repo, upload)
    print(f"{getattr(commit, 'commit_url', args.repo)}: {folder}")
    return 0


def ask_hub(repo: str, ask: Callable[[], Any]) -> Any:
    """Return what the hub answers. Raises RunError with one line, which holds no token, where it fails."""
    import httpx2
    from huggingface_hub import get_token

    try:
        return ask()
    except (OSError, LookupError, TypeError, ValueError, httpx2.HTTPError) as error:
        text = str(error) if isinstance(error, OSError | httpx2.HTTPError) else f"an unexpected answer: {error!r}"
        text = in_one_line(without_secrets(text, filter(None, [get_token()])))
        raise RunError(f"cannot push to {repo}: {text or type(error).__name__}") from error


def own_base(folder: Path) -> str:
    """Return the folder of an adapter's base model on this machine; "" where the hub has it, and without an adapter."""
    path = folder / ADAPTER_CONFIG
    base = json.loads(path.read_text("utf-8")).get("base_model_name_or_path") if path.is_file() else None
    return "" if base is None or (folder / OWN_BASE).is_dir() or on_hub(str(base)) else str(base)


def on_hub(model: str) -> bool:
    """Return whether a name is a model's on the hub, and no folder here."""
    return is_hub_name(model) and not Path(model).is_dir()


def find_checkpoint(run: Path, wanted: str) -> tuple[int, Path]:
    """Return step and folder of a run's checkpoint: "best", "last", "start" or a step. Damaged ones are printed.

    Raise ValueError, LookupError or FileNotFoundError where there is none.
    """
    if not run.is_dir():
        raise FileNotFoundError(f"{run}: no such folder{', but a file' if run.exists() else ''}")
    from rlvr.training.checkpoint.folders import best_steps, checkpoint_folder, find_damage, list_whole

    record = read_record(run / TRAINING.record)
    if record is None or not record.keys() >= TRAINING.keys:
        raise ValueError(f"{run} holds no training run; expected the folder of one")
    steps = [step for step, _ in list_whole(run, note)]
    start = run / "start"
    if wanted == "start" or (wanted in ("best", "last") and not steps and find_damage(start) is None):
        if find_damage(start) is not None:
            raise LookupError(f"--checkpoint start: {run} has no fine-tuned model")
        return 0, start
    if wanted not in ("best", "last") and not wanted.isdecimal():
        raise ValueError(f"--checkpoint {wanted!r:.40}: expected best, last, start or a step")
    if not steps:
        raise LookupError(f"{run} has no whole checkpoint yet")
    step = int(wanted) if wanted.isdecimal() else steps[-1]
    if wanted == "best":
        step = next(iter(best_steps(run, read_lines(run / "eval.jsonl"), steps)[-1:]), steps[-1])
    if step not in steps:
        raise LookupError(f"--checkpoint {step}: {run} has those of steps {', '.join(map(str, steps))}")
    return step, checkpoint_folder(run, step)


def write_export(
    run: Path, step: int, folder: Path, out: Path, name: str | None = None, *, chosen: str = "best"
) -> None:
    """Write a checkpoint's model, its card, and the run's settings and evaluations into a new folder, atomically.

    chosen: what was given as --checkpoint; the card says so.
    """
    facts = facts_of(run, step, folder, name or out.resolve().name, chosen)
    with write_new_folder(out) as partial:
        copy_model(folder, partial)
        (partial / "README.md").write_text(model_card(facts), encoding="utf-8")
        (partial / "run.json").write_text(json.dumps(facts.settings, indent=2) + "\n", encoding="utf-8")
        rows = "".join(json.dumps(row) + "\n" for row in facts.evaluations)
        (partial / "eval.jsonl").write_text(rows, encoding="utf-8")


def check_new(out: Path, command: str) -> None:
    """Raise ValueError for a folder that cannot be made, or holds something."""
    check_place(out, command)
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} exists; name a folder that does not")


@contextmanager
def write_new_folder(out: Path) -> Iterator[Path]:
    """Yield a folder to write into, which then becomes `out`; nothing is left where anything fails."""
    partial = out.with_name(out.name + PARTIAL)
    if partial.exists():
        raise ValueError(f"{partial} exists: another command is writing it, or one was interrupted; delete it")
    with name_in_errors(out):
        try:
            partial.mkdir(parents=True)
            yield partial
            os.replace(partial, out)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def copy_model(folder: Path, out: Path) -> None:
    """Copy a checkpoint without what only a resume needs."""
    skipped = shutil.ignore_patterns(*STATE)(str(folder), [path.name for path in folder.iterdir()])
    for path in folder.rglob("*"):
        part = path.relative_to(folder)
        if path.is_file() and part.parts[0] not in skipped:
            (out / part).parent.mkdir(exist_ok=True)
            try:
                shutil.copyfile(path, out / part)
            except OSError as error:  # it names the file that is copied
                raise OSError(error.errno, error.strerror, str(out / part)) from error


def public(settings: Any) -> Any:
    """Return the settings of a run without folders of this machine and addresses of servers.

    A path becomes its last name, an address becomes PLACE; also in options (key=value), and behind @ (a file's text).
    """
    if isinstance(settings, dict):
        return {
            name: value if name in WORDS else public(value) for name, value in settings.items() if name not in PRIVATE
        }
    if isinstance(settings, list):
        return [public(value) for value in settings]
    return KEY_AND_VALUE.sub(_public_text, settings, count=1) if isinstance(settings, str) else settings


def _public_text(found: re.Match[str]) -> str:
    before, value = found["before"], found["value"]
    if ADDRESS.match(value):
        return f"{before}{PLACE}"
    return f"{before}{re.split(SLASHES, value.rstrip(SLASH))[-1]}" if LOCAL.match(value) else found[0]


def number_chosen_from(run: Path, evaluations: Sequence[Mapping[str, Any]], step: int) -> int:
    """Return among how many measured policies a step's is the best; 0 where it is not, or is not above the start."""
    for comparable in group_comparable(run, evaluations)[-1:]:
        own = next((row for row in comparable if row["step"] == step), None)
        if own is not None and quality(own) == max(map(quality, comparable)):
            others = [row for row in comparable if row["step"] > 0]
            start = [quality(row) for row in comparable if row["step"] == 0]
            return len(others) if all(quality(own) > value for value in start) else 0
    return 0


def warnings_of(run: Path, evaluations: Sequence[Mapping[str, Any]], step: int) -> list[str]:
    """Return what a card must not hide: the checkpoint, or the end of its run, is below the start."""
    comparable = next(iter(group_comparable(run, evaluations)[-1:]), [])
    own = [row for row in comparable if row["step"] in (comparable[0]["step"], step)]
    said = ended_below(own, "This checkpoint is") if own and own[-1]["step"] == step else ""
    return [text for text in (said, *conclusions_of(run)) if text]


def facts_of(run: Path, step: int, folder: Path, name: str, chosen: str) -> CardFacts:
    """Return what the card of a checkpoint is made from. Raise ValueError for damaged logs."""
    settings = read_record(run / TRAINING.record) or {}
    model = settings.get("model") or {}
    base = str(model.get("name", "tiny"))
    measured = read_lines(run / "eval.jsonl")
    return CardFacts(
        name=name,
        settings=public(settings),
        metrics=[row for row in read_lines(run / "metrics.jsonl") if row.get("step", 0) <= step],
        evaluations=[row for row in measured if row.get("step", 0) <= step],
        measured=number_chosen_from(run, measured, step) if chosen == "best" else 0,
        warnings=tuple(warnings_of(run, measured, step)),
        on_hub=on_hub(base) and not (settings.get("run") or {}).get("start_from"),
        alarms=sum(row.get("step", 0) <= step for row in read_lines(run / "alarms.jsonl")),
        step=step,
        adapter=(folder / ADAPTER_CONFIG).is_file(),
        licence=None if base == "tiny" else licence_of(base, model.get("revision")),
    )

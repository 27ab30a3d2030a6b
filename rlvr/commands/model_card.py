"""A model card (README.md) from the files of a run: data, verifier, algorithm, figures with intervals, licence."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.core.files.models import HUB_NAME
from rlvr.core.printable import in_one_line
from rlvr.runs.records import is_graded, is_number, pass_names, with_interval

Record = Mapping[str, Any]
LICENCE = re.compile(r"^license:\s*[\"']?([\w.+-]+)[\"']?\s*$", re.MULTILINE)
OTHER = "other"  # of the hub's words for licences


@dataclass(frozen=True)
class CardFacts:
    """What a card is made from: a run's settings, logs, and the exported checkpoint.

    step: the checkpoint's, 0 for the fine-tuned model. on_hub: whether `base` is a name of the hub. licence: the base
    model's, None where it is not known. measured: among how many evaluations the checkpoint was chosen as the best; 0
    where it was named, or is not better than the start. warnings: sentences that a reader must not overlook.
    """

    name: str
    settings: Record
    metrics: Sequence[Record]
    evaluations: Sequence[Record]
    alarms: int
    step: int
    adapter: bool
    licence: str | None
    on_hub: bool = True
    measured: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def base(self) -> str | None:
        """The model that training began with; None where it was made from nothing."""
        name = str(self.group("model").get("name", "tiny"))
        return None if name == "tiny" else name

    def group(self, name: str) -> Record:
        """Return a group of the run's settings; empty where the record lacks it."""
        return self.settings.get(name) or {}


def licence_of(model: str, revision: str | None = None) -> str | None:
    """Return the licence that a model's card names, in a folder or in the hub's cache. The hub is not asked."""
    path: Path | None = Path(model).expanduser() / "README.md"
    if HUB_NAME.fullmatch(model) and not Path(model).is_dir():
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(model, "README.md", revision=revision)
        path = Path(found) if isinstance(found, str) else None
    if path is None or not path.is_file():
        return None
    text = path.read_text("utf-8", "replace")
    head = text.split("---", 2)[1] if text.startswith("---") and text.count("---") >= 2 else ""
    match = LICENCE.search(head)
    return match[1] if match else None


def model_card(facts: CardFacts) -> str:
    """Return the card as Markdown with the hub's front matter. Text of settings is quoted as code."""
    parts = (front_matter, opening, training, results, loading)
    return "\n\n".join(filter(None, (part(facts) for part in parts))) + "\n"


def front_matter(facts: CardFacts) -> str:
    """Return the hub's metadata; texts are quoted as JSON, which YAML reads."""
    base = facts.base
    fields: dict[str, Any] = {
        "library_name": "peft" if facts.adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["rlvr", "reinforcement-learning", str(facts.group("algo").get("name", "grpo"))],
    }
    if facts.licence is not None:
        fields["license"] = facts.licence
    elif base is not None:
        fields |= {"license": OTHER, "license_name": "that-of-the-base-model"}
    if base is not None and facts.on_hub and HUB_NAME.fullmatch(base):
        fields["base_model"] = base
    lines = [f"{name}: {json.dumps(value)}" for name, value in fields.items()]
    return "\n".join(["---", *lines, "---"])


def opening(facts: CardFacts) -> str:
    """Return title and first sentence, and what a reader must not overlook."""
    base = "a small random model" if facts.base is None else as_code(facts.base)
    done = (
        f"after {facts.step} step{'s' * (facts.step > 1)}" if facts.step else "the fine-tuned model, before any step of"
    )
    kind = "A LoRA adapter for" if facts.adapter else "Trained from"
    begin = f"{kind} {base}: {done} reinforcement learning with verifiable rewards."
    if facts.step:
        begin = f"{kind} {base} by reinforcement learning with verifiable rewards, {done}."
    lines = [f"# {in_one_line(facts.name)}", begin]
    if facts.group("run").get("shuffle_rewards"):
        lines.append("**A control experiment: its rewards were shuffled, so that they carried no information.**")
    if facts.alarms:
        lines.append(f"**The run raised {facts.alarms} alarms that its reward may have been hacked.**")
    lines += [f"**{text}**" for text in facts.warnings]
    if facts.licence is None and facts.base is not None:
        lines.append("The licence of the base model is not known to the program that wrote this card; it applies.")
    return "\n\n".join(lines)


def training(facts: CardFacts) -> str:
    """Return the data, the verifier and the algorithm as a table."""
    run, algo, rollout, optim = (facts.group(name) for name in ("run", "algo", "rollout", "optim"))
    verifier = run.get("verifier") or "the task's own"
    rows = [
        ("data", as_code(run.get("task")), options(run, "task_option", "data")),
        ("environment", as_code(run["environment"]), options(run, "environment_option"))
        if run.get("environment")
        else None,
        ("fingerprint of problems and verifier", as_code(facts.settings.get("fingerprint")), ""),
        ("verifier", as_code(verifier), options(run, "verifier_option")),
        ("algorithm", as_code(algo.get("name")), format_settings(algo, "kl_coef", "credit", "minibatches")),
        (
            "rollouts of a step",
            f"{rollout.get('problems_per_step')} problems x {rollout.get('group_size')} completions",
            format_settings(rollout, "max_new_tokens", "temperature", "max_turns"),
        ),
        ("optimizer", as_code(optim.get("name", "adamw")), format_settings(optim, "lr", "schedule", "max_grad_norm")),
        ("fine-tuning before", f"{facts.group('sft').get('steps', 0)} steps", ""),
        ("seed", as_code(run.get("seed")), ""),
        ("software", ", ".join(f"{k} {v}" for k, v in facts.group("versions").items()), ""),
    ]
    lines = [f"| {name} | {value}{f', {more}' if more else ''} |" for name, value, more in filter(None, rows)]
    return "\n".join(["## Training", "", "| | |", "|---|---|", *lines])


def results(facts: CardFacts) -> str:
    """Return held-out pass@k before training and of this checkpoint, with 95 % intervals; "" without evaluations."""
    measured = [row for row in facts.evaluations if row.get("step") in (0, facts.step)]
    if not measured:
        return ""
    names = pass_names(measured) + (["score"] if is_graded(measured) else [])
    ks = [prefix + name for name in names for prefix in ("", "strict_", "lenient_")]
    ks = [name for name in ks if any(is_number(row.get(name)) for row in measured)]
    head = ["step", *(name.replace("_", " ") for name in ks), "truncated"]
    lines = [
        [str(row["step"]), *(with_interval(row, name) for name in ks), f"{row.get('truncated', 0):.3f}"]
        for row in measured
    ]
    if not any(row.get("step") == facts.step for row in measured):
        lines.append([str(facts.step), *(["not measured"] * (len(head) - 1))])
    table = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *lines)]
    count = measured[-1].get("num_problems")
    intro = f"pass@k on {count} held-out problems, 95 % intervals over problems in brackets; step 0 is before training."
    last = facts.metrics[-1] if facts.metrics else {}
    unscored = last.get("unscored")
    lost = bool(unscored) and is_number(unscored)
    note = f"\n\nIn the last step {unscored:.1%} of the rollouts had no score." if lost else ""
    if facts.measured > 1:
        note += (
            f"\n\nThis checkpoint was chosen as the best of {facts.measured} evaluations on these problems: its figure "
            "here is above what other problems would give."
        )
    return "\n".join(["## Results", "", intro, "", *table]) + note


def loading(facts: CardFacts) -> str:
    loader = "peft import AutoPeftModelForCausalLM" if facts.adapter else "transformers import AutoModelForCausalLM"
    lines = [
        "## Use",
        "",
        "```python",
        f"from {loader} as Model",
        "from transformers import AutoTokenizer",
        "",
        'model = Model.from_pretrained("FOLDER_OR_NAME")',
        'tokenizer = AutoTokenizer.from_pretrained("FOLDER_OR_NAME")',
        "```",
        "",
        "Made with rlvr; `run.json` holds all settings of the run, `eval.jsonl` all evaluations.",
    ]
    prompt = facts.group("model").get("system_prompt")
    return "\n".join(lines) + (f"\n\nSystem prompt in training: {as_code(prompt)}" if prompt else "")


def options(group: Record, *names: str) -> str:
    """Return options of a setting as code; "" without any."""
    values = [group.get(name) for name in names]
    flat = [one for value in values for one in (value if isinstance(value, list | tuple) else [value])]
    return ", ".join(as_code(value) for value in flat if value is not None)


def format_settings(group: Record, *names: str) -> str:
    """Return some settings of a group, those that it has."""
    return ", ".join(f"{name} {as_code(group[name])}" for name in names if group.get(name) is not None)


def as_code(value: Any) -> str:
    """Return a value as inline code in a table cell, whatever is in it."""
    text = in_one_line(str(value))
    ticks = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{space}{text}{space}{ticks}".replace("|", "\\|")

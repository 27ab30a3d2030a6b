"""Check the flags of a command line, and explain in one line what is wrong with it."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import re
import typing
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

from rlvr.core.printable import expected

# What other trainers call a setting.
ELSEWHERE = {
    "adam-beta1": "optim.betas",
    "bf16": "model.dtype",
    "dataset-name": "run.task",
    "gradient-accumulation-steps": "optim.tokens-per-microbatch",
    "lora-r": "model.lora-rank",
    "mask-truncated-completions": "rollout.truncated",
    "num-train-epochs": "run.steps",
    "per-device-train-batch-size": "rollout.problems-per-step",
    "reward-funcs": "run.verifier",
    "scale-rewards": "algo.advantage-scale",
    "use-peft": "model.lora-rank",
    "use-vllm": "sampler",
    "vllm-mode": "sampler",
    "beta": "algo.kl-coef",
    "epsilon": "algo.clip-low",
    "epsilon-high": "algo.clip-high",
    "kl-beta": "algo.kl-coef",
    "learning-rate": "optim.lr",
    "loss-type": "algo.loss",
    "lr-scheduler-type": "optim.schedule",
    "max-completion-length": "rollout.max-new-tokens",
    "max-steps": "run.steps",
    "model-name-or-path": "model.name",
    "n": "samples",
    "num-generations": "rollout.group-size",
    "num-iterations": "algo.epochs",
    "num-train-steps": "run.steps",
    "output-dir": "run.out-dir",
    "report-to": "run.trackers",
    "save-steps": "run.save-every",
    "eval-steps": "eval.every",
}
# Earlier names of flags. A group counts for all its flags that are not named themselves.
RENAMED = {
    "algo.advantage": "algo",
    "algo.dpo-beta": "algo.beta",
    "monitor.options": "monitor.verifier-option",
    "monitor.verifier": "monitor",
    "option": "verifier-option",
    "pairs.task-options": "pairs.task-option",
    "pairs.verifier-options": "pairs.verifier-option",
    "rollout.batch-size": "sampler.batch-size",
    "rollout.max-staleness": "sampler.max-staleness",
    "rollout.sampler": "sampler",
    "run.task-options": "run.task-option",
    "run.verifier-options": "run.verifier-option",
    "shadow": "monitor",
    "shadow.options": "monitor.verifier-option",
    "shadow.verifier": "monitor",
    "vllm": "sampler",
    "vllm.memory-share": "sampler.gpu-memory-utilization",
    "vllm.restarts": "sampler.max-restarts",
}
# Earlier words for values.
RENAMED_WORDS = {
    ("algo", "gae"): "ppo",
    ("eval.verifier", "shadow"): "monitor",
    ("rollout.truncated", "punish"): "penalize",
}
# Groups that are suggested last where several have a setting of the same name.
LATER_GROUPS = ("eval", "sft", "critic", "monitor", "sampler")
SHOWN = 3
SWITCHES = {"true": True, "false": False}  # what may follow a boolean flag


def flags_of(kind: type) -> dict[str, Any]:
    """Return the type of each flag of a plain dataclass, by its name without dashes; without positional arguments."""
    hints, written = typing.get_type_hints(kind), typing.get_type_hints(kind, include_extras=True)
    names = [field.name for field in dataclasses.fields(kind) if not is_positional(written[field.name])]
    return {name.replace("_", "-"): hints[name] for name in names}


def is_positional(hint: Any) -> bool:
    """Return whether a field of this type is an argument without a flag: tyro's `Positional[...]`."""
    return "Positional" in map(str, getattr(hint, "__metadata__", ()))


def check_flags(known: Mapping[str, Any], argv: Sequence[str], prog: str) -> None:
    """Raise ValueError for the first flag that does not exist, with the nearest ones that do.

    Also where a list, or the choice of a group (`--algo`), is given twice: the first would be lost. Of any other flag
    the last one counts, so that a script may add to a command line. The type of one that may be repeated is None.
    """
    given: dict[str, str] = {}
    for place, token in enumerate(argv):
        if not is_flag(token):
            continue
        name = flag_name(token)
        if name in ("-h", "help") or name.startswith("tyro-"):
            continue
        switched = switched_off(name, known)
        if name not in known and switched is None:
            found = f"{prog}: no flag {token.partition('=')[0]}"
            raise ValueError(f"{found}; {nearest(name, known)}")
        name = switched or name
        value = " ".join([token, *itertools.takewhile(lambda word: not is_flag(word), argv[place + 1 :])])
        is_list = typing.get_origin(known[name]) in (list, tuple)
        if name in given and (is_list or any(other.startswith(f"{name}.") for other in known)):
            advice = f"give all its values after one: --{name} A B" if is_list else "leave one out"
            raise ValueError(f"{prog}: --{name} is given twice, {given[name]} and {value}; {advice}")
        given[name] = value


def is_flag(token: str) -> bool:
    """Return whether a token of a command line is a flag: it begins with a dash and is not a negative number."""
    return token.startswith("-") and len(token) > 1 and not re.fullmatch(r"-(\d.*|\.\d.*|inf|nan)|--", token)


def flag_name(token: str) -> str:
    """Return the name of a flag without its dashes and value, `_` replaced by `-`."""
    return token.removeprefix("--").partition("=")[0].replace("_", "-")


def switched_off(name: str, known: Mapping[str, Any]) -> str | None:
    """Return the boolean flag of which `name` is a negative form: `run.no-overwrite`, `no-run.overwrite`. Else None."""
    group, _, leaf = name.rpartition(".")
    asked = f"{group}.{leaf.removeprefix('no-')}" if group else leaf.removeprefix("no-")
    if leaf.startswith("no-") and known.get(asked) is bool:
        return asked
    bare = name.removeprefix("no-")
    return bare if bare != name and known.get(bare) is bool else None


def spell_switches(argv: Sequence[str], known: Mapping[str, Any]) -> list[str]:
    """Return the tokens with boolean flags as tyro reads them: `--run.overwrite` or `--run.no-overwrite`.

    People also write `--no-run.overwrite`, `--run.overwrite false` and `--run.overwrite=true`.
    """
    spelt, left = list[str](), list(argv)
    while left:
        token = left.pop(0)
        name = flag_name(token) if is_flag(token) else ""
        off = switched_off(name, known)
        if off is None and known.get(name) is not bool:
            spelt.append(token)
            continue
        value = token.partition("=")[2] if "=" in token else None
        if value is None and left and left[0].lower() in SWITCHES:
            value = left.pop(0)
        if value is not None and value.lower() not in SWITCHES:
            raise ValueError(f"{token}: expected --{name}, or --{name} false")
        on = (off is None) is (value is None or SWITCHES[value.lower()])
        group, dot, leaf = (off or name).rpartition(".")
        spelt.append(f"--{group}{dot}{'' if on else 'no-'}{leaf}")
    return spelt


def renamed(name: str) -> str | None:
    """Return the present name of a flag that has another one; None where it never had."""
    group, _, leaf = name.partition(".")
    if name in RENAMED:
        return RENAMED[name]
    return f"{RENAMED[group]}.{leaf}" if leaf and group in RENAMED else None


def check_renamed(
    argv: Sequence[str],
    known: Container[str],
    prog: str,
    brought_by: Callable[[str], str | None] = lambda name: None,
) -> None:
    """Raise ValueError for the first flag that has another name, with that name.

    `brought_by(name)`: the choice under which a flag exists that is not known now; None for one that never does.
    """
    for token in argv:
        name = flag_name(token) if is_flag(token) else ""
        better = renamed(name)
        if name in known or better is None:
            continue
        choice = None if better in known else brought_by(better)
        if better in known or choice:
            raise ValueError(f"{prog}: no flag --{name}; it is --{better}{f', with {choice}' if choice else ''}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the flags that an unknown one was probably meant to be."""
    names, name = list(known), name.strip("-").lower()
    group = [flag for flag in names if flag.startswith(f"{name}.")]
    if group:
        return f"it is a group of flags: --{', --'.join(group)}"
    found = same_leaf(name, names) or [flag for flag in names if flag == ELSEWHERE.get(name)]
    found = found or difflib.get_close_matches(name, names, n=SHOWN, cutoff=0.75) or near_leaf(name, names)
    if not found:
        return "none is spelt like it, see --help"
    first, *others = (f"--{flag}" for flag in found[:SHOWN])
    return f"did you mean {first}?" + (f" (or {', '.join(others)})" if others else "")


def same_leaf(name: str, names: Iterable[str]) -> list[str]:
    """Return the flags of any group with the same last part."""
    leaf = name.rpartition(".")[2]
    return sorted((n for n in names if n.rpartition(".")[2] == leaf), key=lambda n: (n != name, is_later(n)))


def near_leaf(name: str, names: Sequence[str]) -> list[str]:
    """Return the flags whose last part is spelt nearly the same, or begins with it."""
    leaf, leaves = name.rpartition(".")[2], sorted({n.rpartition(".")[2] for n in names})
    near = difflib.get_close_matches(leaf, leaves, n=SHOWN, cutoff=0.7)
    near = near or [other for other in leaves if leaf and other.startswith(leaf)]
    return [flag for leaf in near for flag in same_leaf(leaf, names)]


def is_later(name: str) -> bool:
    """Return whether a flag's group comes after the others."""
    return name.partition(".")[0] in LATER_GROUPS


def explain(message: str, kind: type, known: Mapping[str, Any], argv: Sequence[str]) -> str | None:
    """Return tyro's complaint (as one line) in our words: the flag, what was given, what is expected.

    None where it is not understood. `known`: the type of each flag; `kind` has the required ones.
    """
    if "Missing from " in message:
        return f"{' and '.join(missing(kind, argv))} must be given"
    unknown = re.search(r"Unrecognized options: (.+?)(?: Perhaps you meant| -{9}| For full helptext|$)", message)
    if unknown:
        word = unknown[1].split(", ")[0]
        before = next((token for token, then in itertools.pairwise(argv) if then == word), "")
        if is_flag(before) and known.get(flag_name(before), bool) is bool:
            return f"{before} takes no value but true or false, and {word!r} follows it"
        return f"unexpected argument {word!r}"
    named = re.search(r"(?:argument '|Error parsing )--([\w.-]+)", message)
    name = named[1].replace("_", "-").rstrip(".") if named else ""
    if name not in known:
        return None
    given = values_of(name, argv)
    if not given:
        return f"--{name} needs a value: {expected(known[name])}"
    better = next((RENAMED_WORDS[name, value] for value in given if (name, value) in RENAMED_WORDS), None)
    hint = f" ({better}, as it is called)" if better else ""
    return f"--{name} {' '.join(value or repr(value) for value in given)}: expected {expected(known[name])}{hint}"


def missing(kind: type, argv: Sequence[str]) -> list[str]:
    """Return what a command line lacks: required flags, and positional arguments in capitals."""
    given = {flag_name(token) for token in argv if is_flag(token)}
    words = len(list(itertools.takewhile(lambda token: not is_flag(token), argv)))  # positional ones, before any flag
    lacking, written = [], typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        name = field.name.replace("_", "-")
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if is_positional(written[field.name]):
            words -= 1
            if required and words < 0:
                lacking.append(name.upper())
        elif required and name not in given:
            lacking.append(f"--{name}")
    return sorted(lacking, key=lambda name: (name.startswith("--"), name))


def values_of(name: str, argv: Sequence[str]) -> list[str]:
    """Return the values that a command line gives to a flag, at its last mention."""
    values: list[str] = []
    here = False
    for token in argv:
        if is_flag(token):
            here = flag_name(token) == name
            if here:
                values = [token.partition("=")[2]] if "=" in token else []
        elif here:
            values.append(token)
    return values

"""What a recipe that was written for an earlier version has to say instead, for the line of its error."""

from __future__ import annotations

import re
from pathlib import Path

import rlvr
from rlvr import config
from rlvr.commands.flags import renamed
from rlvr.config.sampler import SamplerSettings
from rlvr.config.settings import Group, settings_of

CLASSES = {"ShadowConfig": "MonitorConfig"}
MODULES = {"rlvr.train_command": "rlvr.commands.train"}
GROUPS = {"algo": config.AlgoSettings, "sampler": SamplerSettings}  # those with several classes
# Settings that have become the class of a group.
CHOICES = {
    "algo.advantage": 'AlgoConfig("rloo") and the like, PPOConfig(), RAFTConfig(), DPOConfig() or GDPOConfig()',
    "rollout.sampler": "Config(sampler=VLLMConfig()), VLLMServerConfig() or TorchSamplerConfig()",
    "monitor.verifier": "MonitorConfig(NAME)",
}


def advice(message: str) -> str:
    """Return what to write instead of what an exception complains of; "" where nothing is known.

    >>> advice("RunConfig.__init__() got an unexpected keyword argument 'task_options'")
    'it is run.task_option'
    """
    if found := re.search(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", message):
        return of_argument(found[1], found[2])
    if found := re.search(r"cannot import name '(\w+)' from 'rlvr\.config'", message):
        return f"it is {CLASSES[found[1]]}" if found[1] in CLASSES else ""
    if found := re.search(r"No module named '(rlvr\.[\w.]+)'", message):
        return of_module(found[1])
    return ""


def of_argument(kind: str, name: str) -> str:
    """Return what to write instead of an argument that a class of settings does not take."""
    groups = {"Config": "", **{word: group for group, words in classes().items() for word in words}}
    if kind not in groups:
        return ""
    flag = f"{groups[kind]}.{name}".strip(".")
    if flag in CHOICES:
        return f"it is {CHOICES[flag]}"
    if kind == "VLLMConfig":
        flag = f"vllm.{name}"  # earlier the name of the group too
    if better := renamed(flag.replace("_", "-")):
        return f"it is {better.replace('-', '_')}"
    having = [word for word in classes().get(groups[kind], ()) if has(getattr(config, word), name)]
    return f"it is a setting of {' or '.join(having)}" if having else ""


def of_module(name: str) -> str:
    """Return where a module of the package lies that has been moved."""
    if name in MODULES:
        return f"it is {MODULES[name]}"
    root = Path(rlvr.__file__).parent
    found = [path.relative_to(root.parent) for path in root.rglob(f"{name.rpartition('.')[2]}.py")]
    return f"it is {'.'.join(found[0].with_suffix('').parts)}" if len(found) == 1 else ""


def classes() -> dict[str, list[str]]:
    """Return the names of the classes of each group of a run's settings."""
    found: dict[str, list[str]] = {}
    for kind in (getattr(config, name) for name in config.__all__):
        if isinstance(kind, type) and issubclass(kind, Group) and kind is not config.AlgoSettings:
            own = kind.__name__.removesuffix("Config").lower()
            group = next((name for name, base in GROUPS.items() if issubclass(kind, base)), own)
            found.setdefault(group, []).append(kind.__name__)
    return found


def has(kind: type, name: str) -> bool:
    """Return whether a class of settings has one of this name."""
    return any(setting.name == name for setting in settings_of(kind))

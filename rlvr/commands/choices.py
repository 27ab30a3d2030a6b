"""The flags that choose: `--algo`, `--sampler` and `--monitor` are read first, and give groups of settings a class."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlvr.algo.algorithms import ALGORITHMS
from rlvr.commands.flags import RENAMED_WORDS, flag_name, is_flag
from rlvr.config import SAMPLERS, AlgoConfig, CriticConfig, MonitorConfig, class_of
from rlvr.config.settings import carry, settings_of
from rlvr.core.registry import did_you_mean

Values = dict[str, Any]  # of a config's fields, by name
Variants = Mapping[str, Mapping[str, Any]]  # by a selector's word: groups, by name


def choose_algo(values: Values, word: str) -> Values:
    """Return the values with the settings of another algorithm; those that both have are kept."""
    check_word("algo", word, ALGORITHMS)
    kind, row = class_of(word), ALGORITHMS[word]
    algo = carry(values["algo"], kind, **({"name": word} if kind is AlgoConfig else {}))
    return values | {"algo": algo, "critic": (values["critic"] or CriticConfig()) if row.critic else None}


def choose_sampler(values: Values, word: str) -> Values:
    """Return the values with the settings of another sampler; those that both have are kept."""
    check_word("sampler", word, SAMPLERS)
    return values | {"sampler": carry(values["sampler"], SAMPLERS[word])}


def choose_monitor(values: Values, word: str) -> Values:
    """Return the values with a monitor of this verifier, or without one."""
    held = values["monitor"]
    if word.lower() == "none":
        return values | {"monitor": None}
    kept = {"verifier": word, "verifier_option": ()}
    return values | {"monitor": carry(held, MonitorConfig, **kept) if held else MonitorConfig(word)}


@dataclass(frozen=True)
class Selector:
    """A flag that chooses the class of a group: the group's field that holds the word, what a word does, the words."""

    field: str
    choose: Callable[[Values, str], Values]
    words: Collection[str] = ()


SELECTORS = {
    "algo": Selector("name", choose_algo, ALGORITHMS),
    "sampler": Selector("name", choose_sampler, SAMPLERS),
    "monitor": Selector("verifier", choose_monitor),
}


def check_word(group: str, word: str, words: Iterable[str]) -> None:
    """Raise ValueError for a word that a selector does not know."""
    if word not in words:
        known = list(words)
        near = RENAMED_WORDS.get((group, word))
        advice = f"it is called {near}" if near else did_you_mean(word.lower(), known)
        shown = "" if advice.startswith("known") else f" (one of {', '.join(known)})"
        raise ValueError(f"--{group} {word!r}; {advice}{shown}")


def take_option(flags: Sequence[str], option: str) -> tuple[str | None, list[str]]:
    """Return the value of an option (`--id X`, `--id=X`) and the other flags.

    Raises ValueError where it has no value, and where it is given twice.
    """
    values, rest, left = list[str](), list[str](), list(flags)
    while left:
        flag = left.pop(0)
        if flag == option:
            if not left or is_flag(left[0]):
                raise ValueError(f"{option}: expected a value")
            values.append(left.pop(0))
        elif flag.startswith(f"{option}="):
            values.append(flag.partition("=")[2])
        else:
            rest.append(flag)
    if len(values) > 1:
        raise ValueError(f"{option} is given twice, {option} {values[0]} and {option} {values[1]}; leave one out")
    return (values[0] if values else None), rest


def selected(values: Values, argv: Sequence[str], variants: Variants | None = None) -> tuple[Values, list[str]]:
    """Return the values under the choices of a command line, and the flags that are left.

    A word that is not the recipe's own also brings what the recipe holds for it (`variants`).
    """
    left = list(argv)
    for group, selector in SELECTORS.items():
        if group not in values:
            continue
        word, left = take_option(left, f"--{group}")
        if word is None or word == getattr(values[group], selector.field, None):
            continue
        values = selector.choose(values, word) | dict((variants or {}).get(word, {}))
    return values, left


def brought_by(name: str) -> str | None:
    """Return the choices under which a flag exists (`--algo ppo`); None for a flag that no choice brings."""
    group, _, leaf = name.partition(".")
    brings: dict[str, list[str]] = {}
    for word, row in ALGORITHMS.items():
        for place, kind in (("algo", class_of(word)), *((("critic", CriticConfig),) if row.critic else ())):
            if group == place and has(kind, leaf):
                brings.setdefault("--algo", []).append(word)
    for word, engine in SAMPLERS.items():
        if group == "sampler" and has(engine, leaf):
            brings.setdefault("--sampler", []).append(word)
    if group == "monitor" and has(MonitorConfig, leaf):
        return "--monitor NAME"
    return next((f"{flag} {either(words)}" for flag, words in brings.items()), None)


def either(words: Sequence[str]) -> str:
    """Return words as a choice: `a, b or c`."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def has(kind: type, leaf: str) -> bool:
    """Return whether a group's class has a setting, by the last part of its flag."""
    words = {selector.field for selector in SELECTORS.values()}
    return any(s.name.replace("_", "-") == leaf and s.name not in words for s in settings_of(kind))


def check_kl_place(before: Values, values: Values, argv: Sequence[str]) -> None:
    """Raise ValueError where another algorithm would move the recipe's KL term, and no flag says its weight there."""
    if "algo" not in values or "algo.kl-coef" in {flag_name(token) for token in argv if is_flag(token)}:
        return
    old, new = before["algo"], values["algo"]
    if new.kl_coef and new.kl_in != old.kl_in and "kl_in" not in {setting.name for setting in settings_of(type(new))}:
        raise ValueError(
            f"--algo {new.name}: the recipe's algo.kl_coef {old.kl_coef} is in the {old.kl_in}, and {new.name} has its "
            f"KL term in the {new.kl_in}; set --algo.kl-coef too (0: none)"
        )

"""Units of answers: names, conversion factors and dimensions, which are in units.txt."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from rlvr.core.files.tables import read_sections

from .tree import Unit

# Prefix, its word, and its factor.
_PREFIXES = (
    ("", "", "1"),
    ("k", "kilo", "1000"),
    ("c", "centi", "0.01"),
    ("m", "milli", "0.001"),
    ("d", "deci", "0.1"),
    ("n", "nano", "1e-9"),
    ("μ", "micro", "1e-6"),
    ("M", "mega", "1000000"),
)
# Prefixes of a few units only: "fg" and "TV" are products.
_RARE_PREFIXES = (("G", "giga", "1e9"), ("h", "hecto", "100"), ("p", "pico", "1e-12"), ("T", "tera", "1e12"))
# Units of two words, or with a hyphen between them.
_TWO_WORDS = {
    "light year": "ly", "light years": "ly", "astronomical unit": "AU", "astronomical units": "AU",
    "pound sterling": "£", "pounds sterling": "£", "por ciento": "%", "pour cent": "%", "per cento": "%",
    "newton meter": "Nm", "newton meters": "Nm", "newton metres": "Nm",
}  # fmt: skip
_OF_RARE_PREFIXES = frozenset(("Pa", "Hz", "W", "Wh", "J", "eV", "N", "m", "F"))


def _with_prefixes(prefixes: tuple[tuple[str, str, str], ...], rows: list[list[str]]) -> dict[str, Unit]:
    table: dict[str, Unit] = {}
    for prefix, word, scale in prefixes:
        for names, factor, dimensions in rows:
            powers = [part.partition("^") for part in dimensions.split()]
            dims = tuple(sorted((name.replace("_", " "), int(power or 1)) for name, _, power in powers))
            unit = Unit(Fraction(factor) * Fraction(scale), dims)
            table.update(dict.fromkeys(names.format(p=prefix, w=word).split(), unit))
    return table


def _units() -> dict[str, Unit]:
    """The table by name. A later row replaces an earlier one that has the same name."""
    table = _with_prefixes(_PREFIXES, _TABLE["prefixed"])
    table |= {
        name: unit
        for name, unit in _with_prefixes(_RARE_PREFIXES, _TABLE["prefixed"]).items()
        if len(name) > 3 or (name[0] in "GT" and name[1:] in _OF_RARE_PREFIXES and name[1:] != "m")
    }
    table |= _with_prefixes((("", "", "1"),), _TABLE["others"])
    for name in ("pound", "pounds"):
        table[name] = table[name]._replace(sense="currency")
    for name, others in _TABLE["foreign"]:
        table.update(dict.fromkeys(others.split(), table[name]))
    return table


_TABLE = {
    name: [[cell.strip() for cell in line.split("|")] for line in lines]
    for name, lines in read_sections(Path(__file__).with_name("units.txt")).items()
}
UNITS = _units()
_UPRIGHT_UNITS = {
    name: unit
    for name, unit in _with_prefixes(_RARE_PREFIXES, [*_TABLE["prefixed"], *_TABLE["upright"]]).items()
    if any(name[1:] == one for one in _OF_RARE_PREFIXES)
} | _with_prefixes(_PREFIXES, _TABLE["upright"])
NO_UNIT = Unit(Fraction(1), ())
# Letters that may as well be a variable: a unit only after a space or in \\text{}.
LETTER_UNITS = frozenset("mgshLNJKWVM")
# Of units of two letters those that are no product of variables where they follow a number at once: 5cm, but 3mg.
CLEAR_UNITS = frozenset(
    "cm km mm dm nm um kg ml mL cL dL ft in oz lb yd hr yr mi Hz Pa kJ kW kB KB MB GB eV dB Km KM Kg KG AU cc".split()
)
RATES = frozenset("per a an each every".split())  # before the unit of a rate: $24 per hour
SQUARED = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
POWERS = {"squared": 2, "cubed": 3}


def find_unit(word: str, upright: bool = False) -> Unit | None:
    """Return the unit called `word`; names of one or two letters are case-sensitive.

    `upright`: its letters cannot be variables."""
    found = UNITS.get(word) or (UNITS.get(word.lower()) if len(word) > 2 else None)
    return _UPRIGHT_UNITS.get(word) if found is None and upright else found


def unit_of_two(first: str, second: str) -> Unit | None:
    """Return the unit called by two words: light years."""
    name = _TWO_WORDS.get(f"{first} {second}".lower())
    return None if name is None else UNITS[name]


# Degrees of a scale by what follows the sign: \\circ C, degrees Celsius.
_SCALES = {
    **dict.fromkeys(("C", "celsius", "centigrade"), "C"),
    **dict.fromkeys(("F", "fahrenheit"), "F"),
    **dict.fromkeys(("K", "kelvin", "kelvins"), "K"),
}


def scale_of(word: str) -> str:
    """Return the scale of temperature, C, F or K, that a word after "degree" names; "" where it names none."""
    return _SCALES.get(word if len(word) == 1 else word.lower(), "")


def temperature(scale: str) -> Unit:
    """Return the degree of Celsius (C) or Fahrenheit (F), or the kelvin (K)."""
    return Unit(Fraction(1), (("kelvin" if scale == "K" else f"degree {scale}", 1),))


def power_of(unit: Unit, power: int) -> Unit:
    """Return unit ** power."""
    return Unit(unit.factor**power, tuple((name, n * power) for name, n in unit.dims))


def product_of(left: Unit, right: Unit) -> Unit:
    """Return left * right."""
    dims = dict(left.dims)
    for name, n in right.dims:
        dims[name] = dims.get(name, 0) + n
    return Unit(left.factor * right.factor, tuple(sorted((name, n) for name, n in dims.items() if n)))

"""Units of answers: names, conversion factors and dimensions."""

from __future__ import annotations

from fractions import Fraction

from rlvr.verifiers.math.tree import Unit

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
# Names ({p} and {w}: a prefix and its word), base units (meter, gram, second, ...) and dimensions.
_PREFIXED: tuple[tuple[str, str, dict[str, int]], ...] = (
    ("{p}m {w}meter {w}meters {w}metre {w}metres", "1", {"length": 1}),
    ("{p}g {w}gram {w}grams", "1", {"mass": 1}),
    ("{p}s {w}second {w}seconds", "1", {"time": 1}),
    ("{p}L {p}l {w}liter {w}liters {w}litre {w}litres", "0.001", {"length": 3}),
    ("{p}N {w}newton {w}newtons", "1000", {"mass": 1, "length": 1, "time": -2}),
    ("{p}J {w}joule {w}joules", "1000", {"mass": 1, "length": 2, "time": -2}),
    ("{p}W {w}watt {w}watts", "1000", {"mass": 1, "length": 2, "time": -3}),
    ("{p}V {w}volt {w}volts", "1", {"volt": 1}),
    ("{p}A {w}ampere {w}amperes {w}amp {w}amps", "1", {"ampere": 1}),
    ("{p}Hz {w}hertz", "1", {"time": -1}),
    ("{p}Pa {w}pascal {w}pascals", "1", {"pascal": 1}),
    ("{p}mol {w}mole {w}moles", "1", {"mole": 1}),
)
_OTHERS: tuple[tuple[str, str, dict[str, int]], ...] = (
    ("in inch inches", "0.0254", {"length": 1}),
    ("ft foot feet", "0.3048", {"length": 1}),
    ("yd yds yard yards", "0.9144", {"length": 1}),
    ("mi mile miles", "1609.344", {"length": 1}),
    ("lb lbs pound pounds", "453.59237", {"mass": 1}),
    ("oz ounce ounces", "28.349523125", {"mass": 1}),
    ("ton tons", "907184.74", {"mass": 1}),
    ("tonne tonnes", "1000000", {"mass": 1}),
    ("sec secs", "1", {"time": 1}),
    ("min mins minute minutes", "60", {"time": 1}),
    ("h hr hrs hour hours", "3600", {"time": 1}),
    ("day days", "86400", {"time": 1}),
    ("week weeks", "604800", {"time": 1}),
    ("month months", "1", {"month": 1}),
    ("year years yr yrs", "12", {"month": 1}),
    ("gal gallon gallons", "0.003785411784", {"length": 3}),
    ("qt quart quarts", "0.000946352946", {"length": 3}),
    ("pt pint pints", "0.000473176473", {"length": 3}),
    ("cup cups", "0.0002365882365", {"length": 3}),
    ("mph", "0.44704", {"length": 1, "time": -1}),
    ("kph kmh", "5/18", {"length": 1, "time": -1}),
    ("acre acres", "4046.8564224", {"length": 2}),
    ("hectare hectares ha", "10000", {"length": 2}),
    ("cc", "0.000001", {"length": 3}),
    ("dollar dollars usd bucks $", "1", {"dollar": 1}),
    ("cent cents ¢", "0.01", {"dollar": 1}),
    ("euro euros eur €", "1", {"euro": 1}),
    ("£ gbp", "1", {"pound": 1}),
    ("¥ yen yuan rmb", "1", {"yen": 1}),
    ("₹ rupee rupees rs", "1", {"rupee": 1}),
    ("percent percentage pct %", "0.01", {"percent": 1}),
    ("degree degrees deg °", "1", {"degree": 1}),
    ("radian radians rad rads", "1", {"radian": 1}),
    ("unit units", "1", {}),
)


def _units() -> dict[str, Unit]:
    """The table by name. A later row replaces an earlier one that has the same name."""
    table: dict[str, Unit] = {}
    for prefix, word, scale in _PREFIXES:
        for names, factor, dims in _PREFIXED:
            unit = Unit(Fraction(factor) * Fraction(scale), tuple(sorted(dims.items())))
            table.update(dict.fromkeys(names.format(p=prefix, w=word).split(), unit))
    for names, factor, dims in _OTHERS:
        table.update(dict.fromkeys(names.split(), Unit(Fraction(factor), tuple(sorted(dims.items())))))
    return table


UNITS = _units()
NO_UNIT = Unit(Fraction(1), ())
# Letters that may as well be a variable: a unit only after a space or in \\text{}.
LETTER_UNITS = frozenset("mgshLNJ")
SQUARED = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
POWERS = {"squared": 2, "cubed": 3}


def find_unit(word: str) -> Unit | None:
    """The unit called `word`; names of one or two letters are case-sensitive."""
    return UNITS.get(word) or (UNITS.get(word.lower()) if len(word) > 2 else None)


def power_of(unit: Unit, power: int) -> Unit:
    """unit ** power."""
    return Unit(unit.factor**power, tuple((name, n * power) for name, n in unit.dims))


def product_of(left: Unit, right: Unit) -> Unit:
    """left * right."""
    dims = dict(left.dims)
    for name, n in right.dims:
        dims[name] = dims.get(name, 0) + n
    return Unit(left.factor * right.factor, tuple(sorted((name, n) for name, n in dims.items() if n)))

"""Units of answers: names, conversion factors and dimensions."""

from __future__ import annotations

from fractions import Fraction

from rlvr.verifiers.math.tree import Unit


def _units() -> dict[str, Unit]:
    table: dict[str, Unit] = {}

    def add(names: str, factor: object, **dims: int) -> None:
        unit = Unit(Fraction(str(factor)), tuple(sorted(dims.items())))
        table.update(dict.fromkeys(names.split(), unit))

    for prefix, word, factor in (("", "", "1"), ("k", "kilo", "1000"), ("c", "centi", "0.01"), ("m", "milli", "0.001"),
                                 ("d", "deci", "0.1"), ("n", "nano", "1e-9"), ("μ", "micro", "1e-6"), ("M", "mega",
                                     "1000000")):  # fmt: skip
        add(f"{prefix}m {word}meter {word}meters {word}metre {word}metres", factor, length=1)
        add(f"{prefix}g {word}gram {word}grams", factor, mass=1)
        add(f"{prefix}s {word}second {word}seconds", factor, time=1)
        add(f"{prefix}L {prefix}l {word}liter {word}liters {word}litre {word}litres", Fraction(factor) / 1000, length=3)
        add(f"{prefix}N {word}newton {word}newtons", Fraction(factor) * 1000, mass=1, length=1, time=-2)
        add(f"{prefix}J {word}joule {word}joules", Fraction(factor) * 1000, mass=1, length=2, time=-2)
        add(f"{prefix}W {word}watt {word}watts", Fraction(factor) * 1000, mass=1, length=2, time=-3)
        add(f"{prefix}V {word}volt {word}volts", factor, volt=1)
        add(f"{prefix}A {word}ampere {word}amperes {word}amp {word}amps", factor, ampere=1)
        add(f"{prefix}Hz {word}hertz", factor, time=-1)
        add(f"{prefix}Pa {word}pascal {word}pascals", factor, pascal=1)
        add(f"{prefix}mol {word}mole {word}moles", factor, mole=1)
    add("in inch inches", "0.0254", length=1)
    add("ft foot feet", "0.3048", length=1)
    add("yd yds yard yards", "0.9144", length=1)
    add("mi mile miles", "1609.344", length=1)
    add("lb lbs pound pounds", "453.59237", mass=1)
    add("oz ounce ounces", "28.349523125", mass=1)
    add("ton tons", "907184.74", mass=1)
    add("tonne tonnes", "1000000", mass=1)
    add("sec secs", 1, time=1)
    add("min mins minute minutes", 60, time=1)
    add("h hr hrs hour hours", 3600, time=1)
    add("day days", 86400, time=1)
    add("week weeks", 604800, time=1)
    add("month months", 1, month=1)
    add("year years yr yrs", 12, month=1)
    add("gal gallon gallons", "0.003785411784", length=3)
    add("qt quart quarts", "0.000946352946", length=3)
    add("pt pint pints", "0.000473176473", length=3)
    add("cup cups", "0.0002365882365", length=3)
    add("mph", "0.44704", length=1, time=-1)
    add("kph kmh", Fraction(5, 18), length=1, time=-1)
    add("acre acres", "4046.8564224", length=2)
    add("hectare hectares ha", 10000, length=2)
    add("cc", "0.000001", length=3)
    add("dollar dollars usd bucks $", 1, dollar=1)
    add("cent cents ¢", "0.01", dollar=1)
    add("euro euros eur €", 1, euro=1)
    add("£ gbp", 1, pound=1)
    add("¥ yen yuan rmb", 1, yen=1)
    add("₹ rupee rupees rs", 1, rupee=1)
    add("percent percentage pct %", "0.01", percent=1)
    add("degree degrees deg °", 1, degree=1)
    add("radian radians rad rads", 1, radian=1)
    add("unit units", 1)
    return table


UNITS = _units()
NO_UNIT = Unit(Fraction(1), ())
# Letters that name a variable as readily as a unit: a unit only when set apart by a space and written upright.
LETTER_UNITS = frozenset("mgshLNJ")
SQUARED = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
POWERS = {"squared": 2, "cubed": 3}


def find_unit(word: str) -> Unit | None:
    """The unit called `word`; symbols are case-sensitive, words of four letters and more are not."""
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

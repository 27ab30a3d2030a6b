"""Units of answers: names, conversion factors and dimensions."""

from __future__ import annotations

from fractions import Fraction

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
_WATT = {"mass": 1, "length": 2, "time": -3}
_VOLT = {**_WATT, "ampere": -1}
# Names ({p} and {w}: a prefix and its word), base units (meter, gram, second, ...) and dimensions.
_PREFIXED: tuple[tuple[str, str, dict[str, int]], ...] = (
    ("{p}m {w}meter {w}meters {w}metre {w}metres", "1", {"length": 1}),
    ("{p}g {w}gram {w}grams", "1", {"mass": 1}),
    ("{p}s {w}second {w}seconds", "1", {"time": 1}),
    ("{p}L {p}l {w}liter {w}liters {w}litre {w}litres", "0.001", {"length": 3}),
    ("{p}N {w}newton {w}newtons", "1000", {"mass": 1, "length": 1, "time": -2}),
    ("{p}J {w}joule {w}joules", "1000", {"mass": 1, "length": 2, "time": -2}),
    ("{p}W {w}watt {w}watts", "1000", {"mass": 1, "length": 2, "time": -3}),
    ("{p}V {w}volt {w}volts", "1000", _VOLT),
    ("{p}A {w}ampere {w}amperes {w}amp {w}amps", "1", {"ampere": 1}),
    ("{p}Hz {w}hertz", "1", {"time": -1}),
    ("{p}Pa {w}pascal {w}pascals", "1000", {"mass": 1, "length": -1, "time": -2}),
    ("{p}Wh {w}watt-hour {w}watt-hours", "3600000", {"mass": 1, "length": 2, "time": -2}),
    ("{w}cal {w}calorie {w}calories", "4184", {"mass": 1, "length": 2, "time": -2}),
    ("{p}eV", "1.602176634e-16", {"mass": 1, "length": 2, "time": -2}),
    ("{w}ohm {w}ohms", "1000", {**_VOLT, "ampere": -2}),
    ("{w}coulomb {w}coulombs", "1", {"ampere": 1, "time": 1}),
    ("{w}farad {w}farads", "0.001", {"mass": -1, "length": -2, "time": 4, "ampere": 2}),
    ("{w}tesla {w}teslas", "1000", {"mass": 1, "time": -2, "ampere": -1}),
    ("{w}henry {w}henries {w}henrys", "1000", {"mass": 1, "length": 2, "time": -2, "ampere": -2}),
    ("{p}Wb {w}weber {w}webers", "1000", {"mass": 1, "length": 2, "time": -2, "ampere": -1}),
    ("{w}kelvin {w}kelvins", "1", {"kelvin": 1}),
    ("{p}mol {w}mole {w}moles", "1", {"mole": 1}),
    ("{w}molar", "1000", {"mole": 1, "length": -3}),
    ("{p}Bq {w}becquerel {w}becquerels", "1", {"time": -1, "decay": 1}),
    ("{w}siemens", "0.001", {"mass": -1, "length": -2, "time": 3, "ampere": 2}),
    ("{p}lm {w}lumen {w}lumens", "1", {"lumen": 1}),
)
_OTHERS: tuple[tuple[str, str, dict[str, int]], ...] = (
    ("in inch inches", "0.0254", {"length": 1}),
    ("ft foot feet", "0.3048", {"length": 1}),
    ("yd yds yard yards", "0.9144", {"length": 1}),
    ("mi mile miles", "1609.344", {"length": 1}),
    ("lb lbs pound pounds", "453.59237", {"mass": 1}),
    ("psi", "6894757.293168361", {"mass": 1, "length": -1, "time": -2}),
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
    ("kcal", "4184000", {"mass": 1, "length": 2, "time": -2}),
    ("bar bars", "1e8", {"mass": 1, "length": -1, "time": -2}),
    ("atm", "101325000", {"mass": 1, "length": -1, "time": -2}),
    ("mmHg torr", "133322.368421", {"mass": 1, "length": -1, "time": -2}),
    ("revolution revolutions rev revs", "1", {}),
    ("rpm", "1/60", {"time": -1}),
    ("angstrom angstroms Å \u212b", "1e-10", {"length": 1}),
    ("micron microns um", "1e-6", {"length": 1}),
    ("ly lightyear lightyears light-years", "9460730472580800", {"length": 1}),
    ("AU", "149597870700", {"length": 1}),
    ("furlong furlongs", "201.168", {"length": 1}),
    ("knot knots kn", "463/900", {"length": 1, "time": -1}),
    ("Nm", "1000", {"mass": 1, "length": 2, "time": -2}),
    ("dB decibel decibels", "1", {"decibel": 1}),
    ("ppm", "1e-6", {"part": 1}),
    ("amu Da dalton daltons", "1.66053906660e-24", {"mass": 1}),
    ("fortnight fortnights", "1209600", {"time": 1}),
    ("decade decades", "120", {"month": 1}),
    ("century centuries", "1200", {"month": 1}),
    ("celsius centigrade \\celsius", "1", {"degree C": 1}),
    ("fahrenheit \\fahrenheit", "1", {"degree F": 1}),
    ("bit bits", "1/8", {"byte": 1}),
    ("byte bytes", "1", {"byte": 1}),
    *((f"{p}B", scale, {"byte": 1}) for p, scale in (("k", "1000"), ("K", "1000"), ("M", "1e6"), ("G", "1e9"))),
    *((f"{p}b", f"{scale}", {"byte": 1}) for p, scale in (("M", "125000"), ("G", "125000000"))),
    ("dollar dollars usd bucks $", "1", {"dollar": 1}),
    ("cent cents ¢", "0.01", {"dollar": 1}),
    ("euro euros eur €", "1", {"euro": 1}),
    ("£ gbp", "1", {"pound": 1}),
    ("¥ yen yuan rmb", "1", {"yen": 1}),
    ("₹ rupee rupees rs", "1", {"rupee": 1}),
    ("percent percentage pct %", "0.01", {"percent": 1}),
    ("degree degrees deg °", "1", {"degree": 1}),
    ("radian radians rad rads", "1", {"radian": 1}),
    ("unit units", "1", {"unit": 1}),
    ("Kg Kgs kgs KG", "1000", {"mass": 1}),
    ("Km KM kms", "1000", {"length": 1}),
)


# Names in other languages, and what they are in English.
_FOREIGN = {
    "meter": "metro metros mètre mètres метр метра метров 米 メートル 미터",
    "centimeter": "centímetros centimètres сантиметров 厘米 センチメートル",
    "kilometer": "kilómetros kilomètres километров 千米 公里 キロメートル",
    "gram": "gramos grammes граммов 克 グラム",
    "kilogram": "kilogramos kilogrammes килограммов 千克 公斤 キログラム",
    "liter": "litros литров 升 リットル",
    "second": "segundos secondes sekunden секунд секунды 秒",
    "minute": "minutos minuten минут минуты 分钟",
    "hour": "hora horas heure heures stunde stunden час часа часов 小时 時間 시간",
    "day": "día días jour jours tag tage день дня дней 天",
    "year": "año años jahre jahren год года лет 年",
    "percent": "prozent процент процента процентов",
    "dollar": "dólar dólares долларов 美元",
}
# Units of two words, or with a hyphen between them.
_TWO_WORDS = {
    "light year": "ly", "light years": "ly", "astronomical unit": "AU", "astronomical units": "AU",
    "pound sterling": "£", "pounds sterling": "£", "por ciento": "%", "pour cent": "%", "per cento": "%",
    "newton meter": "Nm", "newton meters": "Nm", "newton metres": "Nm",
}  # fmt: skip


# Units whose letters are rather variables (C, kT), unless they are set upright or stand within a unit.
_UPRIGHT: tuple[tuple[str, str, dict[str, int]], ...] = (
    ("{p}C", "1", {"ampere": 1, "time": 1}),
    ("{p}F", "0.001", {"mass": -1, "length": -2, "time": 4, "ampere": 2}),
    ("{p}T", "1000", {"mass": 1, "time": -2, "ampere": -1}),
    ("{p}H", "1000", {"mass": 1, "length": 2, "time": -2, "ampere": -2}),
    ("{p}K", "1", {"kelvin": 1}),
    ("{p}M", "1000", {"mole": 1, "length": -3}),
    ("{p}S", "0.001", {"mass": -1, "length": -2, "time": 3, "ampere": 2}),
    ("u", "1.66053906660e-24", {"mass": 1}),
    ("{p}\\Omega", "1000", {**_VOLT, "ampere": -2}),
)
_OF_RARE_PREFIXES = frozenset(("Pa", "Hz", "W", "Wh", "J", "eV", "N", "m", "F"))


def _with_prefixes(
    prefixes: tuple[tuple[str, str, str], ...], rows: tuple[tuple[str, str, dict[str, int]], ...]
) -> dict[str, Unit]:
    table: dict[str, Unit] = {}
    for prefix, word, scale in prefixes:
        for names, factor, dims in rows:
            unit = Unit(Fraction(factor) * Fraction(scale), tuple(sorted(dims.items())))
            table.update(dict.fromkeys(names.format(p=prefix, w=word).split(), unit))
    return table


def _units() -> dict[str, Unit]:
    """The table by name. A later row replaces an earlier one that has the same name."""
    table = _with_prefixes(_PREFIXES, _PREFIXED)
    table |= {
        name: unit
        for name, unit in _with_prefixes(_RARE_PREFIXES, _PREFIXED).items()
        if len(name) > 3 or (name[0] in "GT" and name[1:] in _OF_RARE_PREFIXES and name[1:] != "m")
    }
    for names, factor, dims in _OTHERS:
        table.update(dict.fromkeys(names.split(), Unit(Fraction(factor), tuple(sorted(dims.items())))))
    for name in ("pound", "pounds"):
        table[name] = table[name]._replace(sense="currency")
    for name, others in _FOREIGN.items():
        table.update(dict.fromkeys(others.split(), table[name]))
    return table


UNITS = _units()
_UPRIGHT_UNITS = {
    name: unit
    for name, unit in _with_prefixes(_RARE_PREFIXES, (*_PREFIXED, *_UPRIGHT)).items()
    if any(name[1:] == one for one in _OF_RARE_PREFIXES)
} | _with_prefixes(_PREFIXES, _UPRIGHT)
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

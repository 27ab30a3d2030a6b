"""Names and words of the grammar."""

from __future__ import annotations

from rlvr.verifiers.math.tree import OO, PI

FUNCTIONS = {
    name: name
    for name in "sin cos tan cot sec csc sinh cosh tanh coth sech csch arcsin arccos arctan arccot arcsec arccsc "
    "arcsinh arccosh arctanh ln exp log gcd lcm min max floor ceil abs sqrt cbrt sgn".split()
} | {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "arsinh": "arcsinh", "arcosh": "arccosh",
    "artanh": "arctanh",
     "cosec": "csc", "ctg": "cot", "tg": "tan", "arctg": "arctan", "lg": "lg", "ceiling": "ceil", "asinh": "arcsinh",
     "acosh": "arccosh", "atanh": "arctanh", "sign": "sgn", "binom": "binom", "binomial": "binom", "factorial": "fact",
     "Abs": "abs", "arg": "arg", "Arg": "arg", "Re": "re", "Im": "im",
     "Sin": "sin", "Cos": "cos", "Tan": "tan", "cis": "cis"}  # fmt: skip
ARITY = {"gcd": None, "lcm": None, "min": None, "max": None, "binom": 2}
INVERSES = {name: f"arc{name}" for name in "sin cos tan cot sec csc sinh cosh tanh".split()}
CONSTANT_NAMES = {
    "pi": PI,
    "Pi": PI,
    "PI": PI,
    "inf": OO,
    "infinity": OO,
    "Infinity": OO,
    "infty": OO,
    "oo": OO,
    "Inf": OO,
}
GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma "
    "tau upsilon phi "
    "varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell hbar aleph partial "
    "nabla".split()
)
STOP = frozenset("of per for from with each the to left out than".split())

# Skipped before an expression.
LEAD = frozenset(
    "the answer is are was final result value that there it she he they we i has have had makes made will "
    "would be need "
    "needs total of about approximately approx exactly only equals equal to roughly around just simply number "
    "ans solution "
    "therefore thus hence so so, then gets got costs cost spent earns earned paid pays each amount "
    "respectively given by "
    "solutions values roots root altogether sum probability area length volume perimeter distance angle degree measure "
    "price rs us usd inr eur gbp circa option choice".split()
)
# Words that change the meaning of a number beside them: a text with one is not an answer.
BLOCKED = frozenset(
    "or not no never maybe perhaps possibly probably either neither nor unless except but if else any "
    "anything all none "
    "likely unlikely unsure guess alternatively instead cannot can't isn't wrong incorrect correct ignore mark accept "
    "bad accepted approve approved lambda import exec eval print open system true false yes squared cubed "
    "factorial times plus "
    "minus divided multiplied modulo mod between more less fewer than greater least most twice double half triple and "
    "could might may should unknown undefined infinity".split()
)
# After a number they say another value, or that it is none; as a label they are harmless.
ALTERING = frozenset(
    "halved doubled tripled quadrupled negated inverted reversed rejected refuted refused ruled disproved disproven "
    "fails failed excluded erroneously falsely mistakenly mistake seems too par invalid hexadecimal hex octal "
    "extraneous divides contradicts violates against inverse inverses reciprocal etc discarded eliminated dismissed "
    "dropped crossed struck removed retracted withdrawn counting".split()
)
SEPARATORS = {
    "and": "and",
    "or": "or",
    "und": "and",
    "oder": "or",
    "et": "and",
    "ou": "or",
    "oppure": "or",
    "lub": "or",
}
SEPARATORS |= {"then": "then"}
SEPARATORS |= dict.fromkeys(("或", "或者", "または", "もしくは", "또는", "или"), "or")
SEPARATORS |= dict.fromkeys(("和", "且", "以及", "与", "与", "및", "и"), "and")


def is_product(text: str) -> bool:
    """Whether a run of letters is a product of variables: two letters, or more without the vowels that make words."""
    return text.isascii() and (len(text) <= 2 or (len(text) <= 6 and not set(text.lower()) & set("eiou")))


_SHORT_WORDS = frozenset("is are do go so as am we he an".split())
_ABBREVIATIONS = frozenset("pcs pts ppl wks mos dz pgs nos qtrs hwy rdgs sqft dvds cds tvs".split())


def is_noun(text: str) -> bool:
    """Whether a run of letters that could be a product of variables is rather a word: cats, days, DVDs; not abc, mgh.

    It has the vowel a or y, and its letters are not in alphabetical order, as those of a product mostly are."""
    if text in _SHORT_WORDS:
        return True
    if len(text) < 3 or not text.isascii():
        return False
    lower = text.lower()
    if lower in BLOCKED:
        return False
    if lower in _ABBREVIATIONS or (text[:-1].isupper() and text[-1] == "s"):
        return True
    if not (text[1:].islower() and {"a", "y"} & set(lower)):
        return False
    return list(lower) != sorted(lower)

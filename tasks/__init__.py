"""Task packs: prompts paired with a verifier. Importing this package registers the packs that come with rlvr."""

from rlvr.tasks import (
    arithmetic,
    choice_sets,
    code_packs,
    contest_code,
    countdown,
    higher_lower,
    hops,
    instruction_sets,
    jsonl,
    knights,
    math_held_out,
    math_sets,
    math_train,
    plus_tests,
    product,
    tiny_code,
)

__all__ = [
    "arithmetic",
    "choice_sets",
    "code_packs",
    "contest_code",
    "countdown",
    "higher_lower",
    "hops",
    "instruction_sets",
    "jsonl",
    "knights",
    "math_held_out",
    "math_sets",
    "math_train",
    "plus_tests",
    "product",
    "tiny_code",
]

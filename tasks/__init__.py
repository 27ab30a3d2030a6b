"""Task packs: prompts paired with a verifier. Importing this package registers the packs that come with rlvr."""

from rlvr.tasks import (
    arithmetic,
    code_packs,
    countdown,
    higher_lower,
    hops,
    jsonl,
    math_sets,
    product,
    reasoning_gym,
    tiny_code,
    verifiers_pack,
)

__all__ = [
    "arithmetic",
    "code_packs",
    "countdown",
    "higher_lower",
    "hops",
    "jsonl",
    "math_sets",
    "product",
    "reasoning_gym",
    "tiny_code",
    "verifiers_pack",
]

"""Task packs: prompts paired with a verifier.

Nothing is imported before it is used, as in rlvr.verifiers.
"""

from __future__ import annotations

# The registered names, and the module that registers each.
BUILT_IN = {
    **dict.fromkeys(("gsm8k", "math500", "svamp", "aime24"), "math.sets"),
    **dict.fromkeys(("hendrycks_math", "dapo_math", "deepscaler", "big_math", "openr1_math"), "math.train"),
    **dict.fromkeys(("aime25", "aime26", "amc23", "olympiadbench", "minerva", "hmmt"), "math.held_out"),
    **dict.fromkeys(("mbpp", "humaneval"), "code.functions"),
    **dict.fromkeys(("mbpp_plus", "humaneval_plus"), "code.plus_tests"),
    **dict.fromkeys(("apps", "taco", "code_contests", "livecodebench"), "code.contests"),
    **dict.fromkeys(("gpqa", "mmlu_pro"), "language.choices"),
    **dict.fromkeys(("ifeval", "ifbench"), "language.instructions"),
    "knights_knaves": "language.knights",
    "arithmetic": "generated.arithmetic",
    "bilingual_sums": "generated.bilingual_sums",
    "constraints": "generated.constraints",
    "countdown": "generated.countdown",
    "higher_lower": "generated.higher_lower",
    "hops": "generated.hops",
    "notes": "generated.notes",
    "private_sums": "generated.private_sums",
    "product": "generated.product",
    **dict.fromkeys(("secret_sums", "judged_sums"), "generated.secret_sums"),
    "propositions": "generated.propositions",
    "tiny_code": "generated.tiny_code",
    "reasoning_gym": "libraries.reasoning_gym",
    "verifiers": "libraries.verifiers",
    "hub": "hub",
    "jsonl": "jsonl",
    "mixture": "mixture",
}

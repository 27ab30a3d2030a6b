"""Task packs: problems to train on, held-out problems, and the verifier of both.

base        `build_task` and what packs share           sources     reading rows of published data sets
generated/  packs that make their problems              published/  packs of published data sets
own_data    your own files; any data set of the hub     libraries   packs of reasoning-gym and verifiers
mixture     several packs in one                        contamination  training prompts that are held out elsewhere

A pack's module is imported when the pack is first asked for by name.
"""

from __future__ import annotations

_MODULES = {
    "published.math_sets": "gsm8k math500 svamp aime24 hendrycks_math dapo_math deepscaler big_math openr1_math aime25 "
    "aime26 amc23 olympiadbench minerva hmmt",
    "published.functions": "mbpp humaneval mbpp_plus humaneval_plus",
    "published.contests": "apps taco code_contests livecodebench",
    "published.language": "gpqa mmlu_pro ifeval ifbench knights_knaves",
    "generated.arithmetic": "arithmetic",
    "generated.bilingual_sums": "bilingual_sums notes",
    "generated.checked_instructions": "checked_instructions unseen_instructions",
    "generated.constraints": "constraints",
    "generated.countdown": "countdown",
    "generated.higher_lower": "higher_lower",
    "generated.hops": "hops",
    "generated.private_sums": "private_sums secret_sums judged_sums",
    "generated.product": "product",
    "generated.propositions": "propositions",
    "generated.tiny_code": "tiny_code",
    "generated.word_problems": "one_step_problems two_step_problems",
    "libraries": "reasoning_gym verifiers",
    "own_data": "hub jsonl",
    "mixture": "mixture",
}
# The module that registers each name.
BUILT_IN = {name: module for module, names in _MODULES.items() for name in names.split()}

"""Environments: rollouts of several turns.

Nothing is imported before it is used, as in rlvr.verifiers.
"""

from __future__ import annotations

# The registered names; the module of the same name registers each.
BUILT_IN = ("tools",)

"""Checks of IFBench (arXiv:2507.02833) as functions of a response, by the kinds that it names them by.

Names, parameters and meanings are IFBench's, of its repository at db69a6f; a check takes time linear in the text. Where
the published check raises, the instruction is not followed. What it accepts beside the point is accepted here, too;
README.md names it, and where sentences, verbs, syllables and stop words, which the published checks take from
nltk and syllapy, can differ.
"""

from __future__ import annotations

from rlvr.verifiers.ifbench import counts, csv_tables, custom, forms, ratios, repeats, sentence, words
from rlvr.verifiers.ifbench.table import CHECKS

__all__ = ["CHECKS", "counts", "csv_tables", "custom", "forms", "ratios", "repeats", "sentence", "words"]

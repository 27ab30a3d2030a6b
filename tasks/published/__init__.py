"""Packs of published data sets: mathematics, programs, choices, instructions, logic."""

"""Packs of other libraries: reasoning-gym and verifiers."""

"""Bounds, step sizes, lemmas and communication formulas of the paper, as functions."""

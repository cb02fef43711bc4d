"""What the benchmarks measure with: the ways of doing the same work, and clocks."""

IN_PLACE = "in place"
"""The way of MeZO and of the authors' code, which others are compared with: see ``mezo.in_place_scalars``."""

"""What the benchmarks measure with: the ways of doing the same work, clocks, and the limits of this machine."""

IN_PLACE = "in place"
"""The way of MeZO and of the authors' code, which others are compared with: see ``in_place.in_place_scalars``."""

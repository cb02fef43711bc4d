"""Figures: a data frame in, a ``matplotlib.figure.Figure`` out; no pyplot state, no files."""

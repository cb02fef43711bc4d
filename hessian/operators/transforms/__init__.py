"""Operators that are made of others: blocks, inverses, smoothed and whitened ones."""

"""Decoders against any bytes whatever."""

"""Placeholder until the GPU kernels are in."""

raise ImportError("no GPU kernels yet")

"""Kernels that measure many perturbations at once on the CPU: convolutions, language models, fused layers."""

"""Spectra from products alone: Lanczos, quadratic forms, densities."""

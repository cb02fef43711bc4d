"""Operators v ↦ Hv: the Hessian, Gauss-Newton, Fisher, smoothed, whitened and distributed ones."""

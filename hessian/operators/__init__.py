"""Operators v ↦ Hv: the Hessian, Gauss-Newton, Fisher, smoothed and whitened ones."""

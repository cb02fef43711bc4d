"""Operators v ↦ Hv: the Hessian, Gauss-Newton, Fisher, smoothed and whitened ones, and over several processes."""

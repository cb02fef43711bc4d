"""Estimators make scalars of values of the loss along random directions."""

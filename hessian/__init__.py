"""Curvature of trained models: operators, spectra and the effective rank κ = tr(H)/‖H‖₂."""

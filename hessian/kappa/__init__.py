"""The effective rank κ = tr(H)/‖H‖₂: its estimation, its result, its picture, and κ along a training run."""

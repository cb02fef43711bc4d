"""Laws of anybody's training step, and of who has whose noise; they import nothing of the lab but ``outcomes``."""

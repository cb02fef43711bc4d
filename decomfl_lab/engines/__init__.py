"""Who evaluates losses and gradients of a local step, and how."""

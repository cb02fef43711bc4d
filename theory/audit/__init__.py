"""Every statement of the paper with a verdict that the machine repeats."""

"""Every statement of the paper with a finding that the machine repeats."""

"""How fast, how large, how random: measured on this machine, in one run."""

"""``decomfl bound`` and ``decomfl stepsize``."""

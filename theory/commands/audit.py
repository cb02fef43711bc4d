"""``decomfl audit``."""

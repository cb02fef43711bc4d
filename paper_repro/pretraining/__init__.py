"""Small OPT models from nothing but text, which stand in for the hub's."""

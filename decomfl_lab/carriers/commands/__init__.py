"""The commands of the carriers: serve, join, certificates."""

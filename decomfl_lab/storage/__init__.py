"""What is kept on a disk: whole-file writes, checkpoints, tables, provenance, and files that others wrote."""

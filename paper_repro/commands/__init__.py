"""The commands: paper, board, findings."""

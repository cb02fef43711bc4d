"""The commands: paper, findings."""

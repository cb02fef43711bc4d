"""What a statement is, what it measures, and how it is written."""

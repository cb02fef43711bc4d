"""The parts of the report: each figure, each table, each question."""

"""What is remembered of a round: seeds, scalars, schedules."""

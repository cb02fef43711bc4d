"""What a claim says, what was measured, and what follows: rules, health of the runs, the lab's answer."""

"""Is what a user gave one function f of x? Six questions, what is learnt on the way, and whose fault it is if not."""

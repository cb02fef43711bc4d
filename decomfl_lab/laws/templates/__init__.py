"""Files for a target of one's own, to be filled in."""

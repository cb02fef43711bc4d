"""Studies of our own beside the paper: the board of methods, and the edge of stability."""

"""Where the edge of stability lies: the runs, and what is drawn of them."""

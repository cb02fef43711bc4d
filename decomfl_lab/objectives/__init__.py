"""A client's loss as a function of the flat vector x, at x and at x + cz."""

"""The same bits on other processors: what is promised, with everything varied that the promise passes through."""

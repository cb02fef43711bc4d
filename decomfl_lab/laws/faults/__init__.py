"""Wrong implementations, each with the law that catches it."""

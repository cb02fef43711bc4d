"""Commands of this layer."""

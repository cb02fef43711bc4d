"""Messages and their bytes, server and client: without transport, clock or global randomness."""

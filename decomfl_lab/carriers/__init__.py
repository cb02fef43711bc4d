"""Who carries messages between machines: Ray, NVFlare, and a stream of its own (gRPC with TLS)."""

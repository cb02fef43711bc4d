"""The lab's own engine: frames over a gRPC bidirectional stream, a client a connection."""

"""The lab's own engine: frames over a gRPC bidirectional stream, a client a connection."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read where grpc is first imported: every failure is a line else

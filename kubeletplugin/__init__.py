"""The kubelet's side of a DRA driver."""

import os

# Here because gRPC reads it when it is first imported. Its newer listener hands each call through
# one more thread, which takes a tenth of an unprepare (grpcio 1.85). A version that has no such
# choice any more says so in one line.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")

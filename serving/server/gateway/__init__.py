"""Where requests come in: the doors of HTTP and gRPC before one engine, probes, and a clean end."""

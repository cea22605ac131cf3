"""Where requests come in: the HTTP and gRPC servers before one engine, probes, and a clean end."""

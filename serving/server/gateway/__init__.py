"""The gateway: HTTP and gRPC servers before one engine, probes, and graceful shutdown."""

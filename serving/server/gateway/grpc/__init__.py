"""The gRPC gateway: vLLM's published service behind a guard, with its errors and health."""

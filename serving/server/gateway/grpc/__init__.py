"""The gateway of gRPC: vLLM's service as published, behind a guard, with its errors and health."""

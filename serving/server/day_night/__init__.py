"""The controller of day and night: observes, lets a policy decide, acts. No vLLM, no gRPC here."""

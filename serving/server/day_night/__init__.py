"""The day-night controller: observes, lets a policy decide, acts. No vLLM, no gRPC here."""

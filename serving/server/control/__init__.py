"""A running server's control service and its clients. No vLLM here."""

"""The control service of a running server, and its clients. No vLLM here."""

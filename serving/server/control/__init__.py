"""What a running server offers beside vLLM's own HTTP app, and the clients of it. No vLLM here."""

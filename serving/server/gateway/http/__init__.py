"""The HTTP gateway: an ASGI app before vLLM's, its errors, headers and probes."""

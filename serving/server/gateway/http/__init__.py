"""The gateway of HTTP: an ASGI app before vLLM's, its errors, headers and probes."""

"""Keys and values that go from engine to engine, which prefill and decode apart."""

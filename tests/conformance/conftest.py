"""The clients' tests run in the clients' environments: see `tests.conformance.__main__`."""

collect_ignore = ["langchain_openai", "openai_python"]

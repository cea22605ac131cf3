"""Prompts of an exact number of tokens, by the server's tokenizer."""

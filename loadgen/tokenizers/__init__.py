"""Tokenizers that need no server: a published file, and words."""

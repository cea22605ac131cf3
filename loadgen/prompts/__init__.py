"""From plans to words: prompts of an exact number of tokens, by the server's tokenizer."""

"""OpenAI's Files and Batch APIs: files of requests, answered when seats are free, none lost."""

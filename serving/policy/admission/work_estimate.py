"""What a request is taken to ask for where it does not say, or nobody has counted it yet."""

from typing import Final

CHARACTERS_PER_TOKEN: Final = 4
"""Of text ("~4 characters in English", https://platform.openai.com/tokenizer), until the engine has
counted."""

UNSAID_NEW_TOKENS: Final = 1024
"""Of an answer whose request says nothing about its length; assumed, until the engine knows: the
whole context would keep chats without a limit out of every budget."""

SEQUENCES_MAX: Final = 16_384
"""Of one request: vLLM refuses a larger `n` (VLLM_MAX_N_SEQUENCES)."""

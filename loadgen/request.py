"""One request as the workload makes it: what to send and how long a reply to ask for."""

from dataclasses import dataclass

Prompt = str | tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt and the number of tokens to generate.

    `input_tokens` is the prompt's length: exact for token ids, the number of words for a text.
    Raises ValueError for a length below 1, and for token ids that are not `input_tokens` many.
    """

    request_id: int
    prompt: Prompt
    input_tokens: int
    output_tokens: int

    def __post_init__(self) -> None:
        if self.input_tokens < 1 or self.output_tokens < 1:
            raise ValueError(f"a request has tokens: {self.input_tokens}, {self.output_tokens}")
        if isinstance(self.prompt, tuple) and len(self.prompt) != self.input_tokens:
            raise ValueError(f"{len(self.prompt)} token ids are not {self.input_tokens} tokens")

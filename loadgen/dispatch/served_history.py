"""Puts the server's replies into a session's later calls."""

from dataclasses import replace

from loadgen.clients.client import Reply
from loadgen.records.request import Message, Prompt, Request, Session


class ServedHistory:
    """Replies of one session, in the form of its prompts: texts or token ids."""

    def __init__(self, session: Session) -> None:
        contents = session.calls[0].request.messages[0].content
        self._texts = isinstance(contents, str)
        self._asked = [call.request.output_tokens for call in session.calls]
        self._said: dict[int, Prompt] = {}
        self._tokens: dict[int, int] = {}  # how many of them, by the server's count

    def keep(self, position: int, reply: Reply) -> None:
        """Keep the reply of the call at `position`; one without text or ids is ignored."""
        said: Prompt | None = reply.text if self._texts else reply.token_ids
        if said is None:
            return
        self._said[position] = said
        if not isinstance(said, str):
            self._tokens[position] = len(said)
        elif reply.output_tokens is not None:
            self._tokens[position] = reply.output_tokens

    def completed(self, request: Request) -> tuple[Request, bool]:
        """The request with the server's replies for planned ones, and whether all were there.

        `input_tokens` follows the server's counts of its replies.
        """
        messages: list[Message] = []
        longer_tokens = 0
        whole = True
        for message in request.messages:
            position = message.reply_of
            if position is None:
                messages.append(message)
            elif position in self._said:
                messages.append(replace(message, content=self._said[position]))
                longer_tokens += self._tokens.get(position, self._asked[position])
                longer_tokens -= self._asked[position]
            else:
                whole = False
                messages.append(message)
        input_tokens = max(1, request.input_tokens + longer_tokens)
        return replace(request, messages=tuple(messages), input_tokens=input_tokens), whole

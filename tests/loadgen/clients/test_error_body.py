import pytest

from loadgen.clients.server_json import error_message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": {"message": "too\\nlong", "code": 400}}', "too long"),
        (b'{"message": "no model"}', "no model"),
        (b'{"error": "busy"}', "busy"),
        (b"<html>bad gateway</html>", "<html>bad gateway</html>"),
        (b"\xff" * 3, "\ufffd" * 3),
        (b"x" * 1000, "x" * 200),
        (b"", ""),
        (b"[" * 100_000, "[" * 200),  # deeper than any parser goes
        (b'{"error": "\xff"}', '{"error": "\ufffd"}'),
        (b'{"error": "\\u001b[2Jgone"}', "[2Jgone"),
        (b"\x1b]0;title\x07", "]0;title"),
    ],
)
def test_an_error_body_of_any_form_becomes_one_short_line(body: bytes, words: str) -> None:
    assert error_message(body) == words

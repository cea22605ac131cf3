"""What a stream of vLLM's app that begins with an error is answered in its place."""

import pytest

from serving.server.gateway.http.app_errors import AppAnswer, error_of_stream


def begun(code: int) -> AppAnswer:
    first = f'data: {{"error": {{"message": "not now", "param": null, "code": {code}}}}}\n\n'
    return AppAnswer(status=200, headers=(), first=first.encode(), streams_events=True)


@pytest.mark.parametrize(("code", "retry_after"), [(503, b"1"), (500, None), (400, None)])
def test_only_who_may_come_back_is_told_when(code: int, retry_after: bytes | None) -> None:
    error = error_of_stream(begun(code))
    assert error is not None
    assert error.status == code
    assert dict(error.headers()).get(b"retry-after") == retry_after

import pytest
from multidict import CIMultiDict

from serving.server.console.console_sessions import comes_from_elsewhere, is_named_rightly


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1:50051", "127.0.0.1", "localhost:8080", "LOCALHOST:50051", "[::1]:50051"),
        *("127.1.2.3:1", "console.localhost:50051", "my-host:50051"),
    ],
)
def test_names_of_loopback_and_the_server_s_own_are_right_on_any_port(host: str) -> None:
    assert is_named_rightly(host, "my-host")


@pytest.mark.parametrize(
    "host",
    [
        *("", "evil.example:50051", "127.0.0.1.evil.example", "localhost.evil.example", "0.0.0.0"),
        *("user@localhost", "localhost:x", "[::1", "10.0.0.1:50051", "my-host.evil"),
        "localhost evil.example",
    ],
)
def test_a_name_that_somebody_else_can_point_here_is_wrong(host: str) -> None:
    assert not is_named_rightly(host, "my-host")


def asked(host: str = "127.0.0.1:50051", **more: str) -> CIMultiDict[str]:
    given = {name.replace("_", "-"): value for name, value in more.items()}
    return CIMultiDict({"Host": host, **given})


@pytest.mark.parametrize(
    "headers",
    [
        asked(),  # no browser
        asked(Origin="http://127.0.0.1:50051", Sec_Fetch_Site="same-origin"),
        asked(Origin="http://127.0.0.1:50051"),
        asked(Sec_Fetch_Site="none"),
        asked(host="LOCALHOST:8080", Origin="http://localhost:8080"),
        asked(host="localhost", Origin="http://localhost"),
        asked(host="[::1]:50051", Origin="http://[::1]:50051"),
    ],
)
def test_our_own_page_and_what_is_no_page_may_ask(headers: CIMultiDict[str]) -> None:
    assert not comes_from_elsewhere(headers, scheme="http")


@pytest.mark.parametrize(
    "headers",
    [
        asked(Origin="http://127.0.0.1:3000"),  # same site, as cookies have it
        asked(Sec_Fetch_Site="same-site"),
        asked(Sec_Fetch_Site="cross-site"),
        asked(Origin="https://127.0.0.1:50051"),
        asked(Origin="http://localhost:50051"),
        asked(Origin="http://evil.example"),
        asked(Origin="null"),
        asked(Origin=""),
        asked(Origin="http://127.0.0.1:50051", Sec_Fetch_Site="cross-site"),
        CIMultiDict({"Origin": "http://127.0.0.1:50051"}),
    ],
)
def test_another_s_page_may_not(headers: CIMultiDict[str]) -> None:
    assert comes_from_elsewhere(headers, scheme="http")

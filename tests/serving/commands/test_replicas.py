"""`ultraserve replicas` before a service: its table, its JSON, and what it cannot reach."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec
import pytest

from serving.commands.replicas import KEY_VARIABLE
from serving.main import main
from serving.server.replicas.live_replica import LiveReplica, ReplicaState
from serving.server.replicas.replica_list import ReplicaList, ServicePorts, replica_list
from serving.server.replicas.replica_place import ReplicaPlace
from tests.e2e.server_process import free_port

LISTED = replica_list(
    tuple(
        LiveReplica(
            place=ReplicaPlace(
                number=number,
                ultraserver="0",
                first_chip=4 * number,
                chips=4,
                visible_cores="0-15",
                control_port=50051 + 2 * number,
                console_port=0,
            ),
            state=state,
            reason=reason,
            requests=1_200,
            fingerprint="" if reason else "vllm-0.32.0-e4364931-v2-dcfed83d",
        )
        for number, state, reason in (
            (0, ReplicaState.READY, ""),
            (1, ReplicaState.NOT_READY, "the server is drained"),
        )
    ),
    [None, None],
    ServicePorts(),
)


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/replicas" and self.headers["Authorization"] == "Bearer us-1"
            self.send_response(200 if known else 401)
            self.end_headers()
            self.wfile.write(LISTED if known else b"{}")

        def log_message(self, *args: object) -> None:
            pass

    monkeypatch.setenv(KEY_VARIABLE, "us-1")
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_list_is_a_table(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replicas", "--url", url]) == 0

    first, _, *rows = capsys.readouterr().out.splitlines()
    assert first == "1 of 2 replicas are ready"
    assert [row.split()[:2] for row in rows] == [["0", "ready"], ["1", "not"]]
    assert "0-3" in rows[0]
    assert "v2-dcfed83d" in rows[0].split()
    assert rows[1].endswith("the server is drained")


def test_the_list_is_json_too(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replicas", "--json", "--url", url]) == 0

    shown = json.loads(capsys.readouterr().out)
    assert msgspec.convert(shown, ReplicaList) == msgspec.json.decode(LISTED, type=ReplicaList)


def test_without_a_service_or_its_key_nothing_is_listed(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replicas", "--url", f"http://127.0.0.1:{free_port()}"]) == 2
    assert "Connection refused" in capsys.readouterr().err
    monkeypatch.setenv(KEY_VARIABLE, "us-2")
    assert main(["replicas", "--url", url]) == 2
    assert "401" in capsys.readouterr().err

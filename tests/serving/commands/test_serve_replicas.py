"""`ultraserve serve --replicas`: what is refused, and what the service is started with."""

import socket

import pytest

from emulator.errors import ConfigError
from serving.commands import serve
from serving.errors import PortInUse
from serving.server.replicas import replica_service
from serving.server.replicas.replica_service import ServiceSettings
from tests.e2e.server_process import free_port
from tests.serving.commands.serve_flags import parse

CLOCK = ("--clock", "dilated:20")
ROLES = ("--replica-roles", "prefill=1,decode=1")
NGRAM = '{"method": "ngram", "num_speculative_tokens": 3}'


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ServiceSettings]:
    """The services that would be started."""
    services: list[ServiceSettings] = []

    def start(settings: ServiceSettings) -> int:
        services.append(settings)
        return 7

    monkeypatch.setattr(replica_service, "serve_replicas", start)
    return services


def run(*arguments: str) -> int:
    words = ["--replicas", "2", "--chips", "2", "--control-port", "0", *arguments]
    args = parse("--port", str(free_port()), *words)
    args.words = ["serve", *words]
    return serve.run(args)


def test_each_replica_has_its_chips_and_the_service_its_clock(
    started: list[ServiceSettings],
) -> None:
    assert run(*CLOCK, "--max-model-len", "512", "--router", "least-loaded") == 7

    (service,) = started
    assert [place.first_chip for place in service.places] == [0, 2]
    assert (service.dilation, service.context_tokens) == (20.0, 512)
    assert service.router == "least-loaded"
    assert service.words[:3] == ("serve", "--replicas", "2")
    assert [place.role for place in service.places] == [None, None]


def test_replicas_have_their_roles_in_order(started: list[ServiceSettings]) -> None:
    assert run(*CLOCK, *ROLES) == 7
    assert [place.role for place in started[0].places] == ["prefill", "decode"]
    assert started[0].replica_step_tokens is None


@pytest.mark.long
def test_roles_follow_the_load_by_the_tokens_of_a_replicas_step(
    started: list[ServiceSettings],
) -> None:
    for given in ((), ("--max-num-batched-tokens", "512")):
        assert run(*CLOCK, "--replica-roles", "auto", *given) == 7
    assert [place.role for place in started[0].places] == ["prefill", "decode"]
    assert [each.replica_step_tokens for each in started] == [2 * 2_048, 2 * 512], "two ranks"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "clock=auto"),
        ((*CLOCK, "--replicas", "0"), "replicas=0"),
        ((*CLOCK, "--router", "nearest"), "router=nearest"),
        ((*CLOCK, "--grpc-port", "50061"), "grpc_port=50061"),
        ((*CLOCK, "--control-port", "50999", "--day-night", "manual"), "replicas=2"),
        ((*CLOCK, "--api-server-count", "2"), "api_server_count=2"),
        ((*CLOCK, "--kv-events-config", "{}"), "kv_events_config=--kv-events-config"),
        ((*CLOCK, "--kv-transfer-config", "{}"), "kv_transfer_config=--kv-transfer-config"),
        ((*CLOCK, "--replica-roles", "prefill=2"), "replica_roles=prefill=2: .*that decodes"),
        ((*CLOCK, "--replica-roles", "auto", "--replicas", "1"), "replica_roles=auto: .*prefills"),
        ((*CLOCK, *ROLES, "--engine", "fast", "--weights", "none"), "engine=fast"),
        ((*CLOCK, *ROLES, "--chips", "2", "--prefill-ranks", "1"), "prefill_ranks=1"),
        ((*CLOCK, *ROLES, "--speculative-config", NGRAM), "num_speculative_tokens=3"),
        ((*CLOCK, "--ray-address", "a:6379", "--ray-node", "1"), "ray_node=1: .*by turns"),
        ((*CLOCK, "--replica-silence", "14"), "replica_silence=14.*at least 15 wall seconds"),
    ],
)
def test_what_a_service_does_not_have_is_refused(
    started: list[ServiceSettings], arguments: tuple[str, ...], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        run(*arguments)
    assert started == []


def test_a_port_of_any_replica_is_looked_at_first(started: list[ServiceSettings]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=f"control_port={port}"):
            run(*CLOCK, "--control-port", str(port - 2), "--console-port", "0")
    assert started == []

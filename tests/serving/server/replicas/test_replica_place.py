"""Where replicas go, and how each is started."""

import pytest

from emulator.errors import ConfigError
from emulator.specs.systems import system_by_name
from serving.server.replicas.replica_place import ReplicaPlace, replica_places
from serving.server.replicas.replica_process import replica_words
from serving.settings import Settings

SYSTEM = system_by_name("trn3-nl72x2")


def places(count: int, **settings: object) -> tuple[ReplicaPlace, ...]:
    made = Settings(lnc=2, **settings)  # type: ignore[arg-type]
    return replica_places(made, SYSTEM, count, control_port=50051, console_port=50052)


def test_partitions_follow_each_other_with_their_spares() -> None:
    first, second = places(2, chips=3, spares=1)

    assert (first.first_chip, first.visible_cores, first.control_port) == (0, "0-11", 50053)
    assert (second.first_chip, second.visible_cores, second.control_port) == (4, "16-27", 50055)
    assert (second.ultraserver, second.console_port) == ("0", 50056)


def test_a_full_ultraserver_is_followed_by_the_next() -> None:
    made = places(5, chips=72, ultraserver="a")

    assert [each.ultraserver for each in made] == ["a", "a", "a-1", "a-1", "a-2"]
    assert [each.first_chip for each in made] == [0, 72, 0, 72, 0]


def test_a_clusters_nodes_are_taken_by_turns() -> None:
    assert [each.ray_node for each in places(3, ray_address="a:6379")] == [0, 1, 2]
    assert [each.ray_node for each in places(2)] == [None, None]
    (place,) = places(1, ray_address="a:6379")
    words = replica_words(["serve", "--ray-address", "a:6379"], place, 15_001)
    assert words[-2:] == ["--ray-node", "0"]


@pytest.mark.parametrize(("count", "chips"), [(0, 4), (1, 145)])
def test_what_cannot_be_is_refused(count: int, chips: int) -> None:
    with pytest.raises(ConfigError, match=r"replicas=0|chips=145"):
        places(count, chips=chips)


def test_a_replica_gets_the_services_words_but_for_its_address_and_keys() -> None:
    (place,) = places(1)
    words = [
        *("serve", "qwen3-30b-a3b", "--replicas", "2", "--router=round-robin", "--port", "80"),
        *("--host=0.0.0.0", "--api-keys", "k.toml", "--api_key", "a", "b", "--tls-cert", "c"),
        *("--tls-key=d", "--chips", "4", "--max-num-seqs", "8", "--control-port", "50051"),
        *("--control-host", "0.0.0.0"),
    ]

    assert replica_words(words, place, 15_001) == [
        *("serve", "qwen3-30b-a3b", "--chips", "4", "--max-num-seqs", "8"),
        *("--disable-uvicorn-access-log", "--host", "127.0.0.1", "--port", "15001"),
        *("--control-port", "50053", "--console-port", "50054", "--ultraserver", "0"),
    ]

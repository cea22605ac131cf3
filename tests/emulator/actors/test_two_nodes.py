"""Chips on two Ray nodes compute the bits that chips on one compute; the cluster outlives them."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import ray

from emulator.actors.ray_session import RaySession
from emulator.data import SMALL_MOE_DIR
from emulator.errors import ChipLost, ConfigError
from emulator.fleet import Fleet
from emulator.specs.placement import ExpertPlacement
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import NewRequest, RankOutput, RankStep, Scheduled
from tests.emulator.actors.two_ray_nodes import HEAD, OTHER, TwoRayNodes, started_nodes

pytestmark = pytest.mark.fleet

CHIPS, LAYERS, EXPERTS = 4, 4, 144
PROMPT_TOKENS, DECODES = 70, 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[TwoRayNodes]:
    with started_nodes() as cluster:
        yield cluster


@pytest.fixture
def token(cluster: TwoRayNodes) -> Iterator[None]:
    with cluster.as_driver():
        yield


def fleet_at(ray_address: str | None, *, ray_node: int | None = None) -> Fleet:
    placement = ExpertPlacement.even(layers=LAYERS, experts=EXPERTS, chips=CHIPS, ep=CHIPS)
    return Fleet(
        weights_dir=SMALL_MOE_DIR,
        placement=placement,
        kv_blocks=16,
        block_tokens=32,
        ray_address=ray_address,
        ray_node=ray_node,
    )


def outcome(fleet: Fleet) -> list[dict[int, RankOutput]]:
    """A prefill and some decodes of one request on every rank."""
    rng = np.random.default_rng(5)
    outputs = []
    for step in range(1 + DECODES):
        position = 0 if step == 0 else PROMPT_TOKENS + step - 1
        tokens = PROMPT_TOKENS if step == 0 else 1
        steps = []
        for rank in range(CHIPS):
            new = NewRequest(
                request_id=f"r{rank}",
                token_ids=rng.integers(300, 1_000, PROMPT_TOKENS).tolist(),
                prompt_tokens=PROMPT_TOKENS,
                sampling=SamplingSpec(temperature=0.0, logprobs=20),
                block_ids=[1, 2, 3],
            )
            scheduled = Scheduled(request_id=f"r{rank}", first_position=position, new_tokens=tokens)
            steps.append(
                RankStep(rank=rank, new=[] if step else [new], scheduled=[scheduled], finished=[])
            )
        outputs.append(fleet.step(steps, {}).outputs)
    return outputs


def bits(outputs: list[dict[int, RankOutput]]) -> list[bytes]:
    found = []
    for output in (step[rank] for step in outputs for rank in sorted(step)):
        assert output.logprobs is not None
        found += [output.token_ids.tobytes(), output.logprobs.logprobs.tobytes()]
    return found


@pytest.mark.slow
def test_chips_on_two_nodes_compute_the_same_bits_and_leave_the_cluster_as_it_was(
    cluster: TwoRayNodes, token: None
) -> None:
    alone = fleet_at(None)
    try:
        alone.start()
        expected = bits(outcome(alone))
    finally:
        alone.stop()

    spread = fleet_at(cluster.address)
    try:
        spread.start()
        nodes = spread._processes._ray.place_chips(CHIPS)
        assert [node.address for node in nodes] == [HEAD, HEAD, OTHER, OTHER]
        assert spread._processes.channel.address.startswith(f"{HEAD}:")
        assert bits(outcome(spread)) == expected
        assert len(cluster.workers()) == CHIPS
        spread.kill(3)  # on the other node
        with pytest.raises(ChipLost) as caught:
            outcome(spread)
        assert caught.value.chips == (3,)
    finally:
        spread.stop()

    assert len(expected) == 2 * CHIPS * (1 + DECODES)
    session = RaySession(cluster.address)
    try:
        session.start()
        assert [node.address for node in session.nodes()] == [HEAD, OTHER]
    finally:
        session.stop()


@pytest.mark.slow
def test_chips_with_a_node_stay_on_it_and_compute_the_same_bits(
    cluster: TwoRayNodes, token: None
) -> None:
    computed = []
    for number, node in enumerate((HEAD, OTHER)):
        fleet = fleet_at(cluster.address, ray_node=number)
        try:
            fleet.start()
            assert len(cluster.workers(node)) == CHIPS
            assert fleet._processes.channel.is_on_one_host is (node == HEAD)
            computed.append(bits(outcome(fleet)))
        finally:
            fleet.stop()

    assert computed[0] == computed[1]


@pytest.mark.slow
def test_a_cluster_without_a_token_is_refused() -> None:
    # A token of ours does not make it one that asks.
    with started_nodes(alone=True, is_open=True) as cluster, cluster.as_driver():
        session = RaySession(cluster.address)
        with pytest.raises(ConfigError, match="expected a Ray cluster with token authentication"):
            session.start()
        session.stop()
        assert not ray.is_initialized()


@pytest.mark.slow  # Ray tries for half a minute
def test_something_else_that_listens_is_one_clear_line() -> None:
    with socket.create_server((HEAD, 0)) as other:
        other.settimeout(30.0)
        address = f"{HEAD}:{other.getsockname()[1]}"
        closer = threading.Thread(target=close_all, args=(other,), daemon=True)
        closer.start()
        session = RaySession(address)
        with pytest.raises(ConfigError, match=rf"^ray_address={address}: expected a running Ray"):
            session.start()
        session.stop()


def close_all(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            listener.accept()[0].close()


def test_a_cluster_that_there_is_not_is_one_clear_line() -> None:
    session = RaySession(f"{HEAD}:9")

    with pytest.raises(ConfigError, match=rf"^ray_address={HEAD}:9: expected a running Ray.*\)$"):
        session.start()
    session.stop()

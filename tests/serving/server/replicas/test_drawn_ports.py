"""Ports of processes that listen on them later."""

import socket

from serving.server.replicas.drawn_ports import HOST, DrawnPorts
from tests.e2e.server_process import free_port

AMONG = range(20_000, 20_060)


def test_no_two_processes_get_the_same_port() -> None:
    own = AMONG[7]
    ports = DrawnPorts([own], among=AMONG)
    drawn = [ports.draw() for _ in range(30)]

    assert len({*drawn, own}) == 31
    assert set(drawn) < set(AMONG)


def test_a_port_that_was_given_back_is_drawn_again() -> None:
    port = free_port()
    ports = DrawnPorts(among=range(port, port + 1))
    for _ in range(2):
        assert ports.draw() == port
        ports.give_back([port])


def test_a_port_that_somebody_listens_on_is_left_out() -> None:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port = listener.getsockname()[1]
        ports = DrawnPorts(among=range(port - 20, port + 20))
        assert port not in [ports.draw() for _ in range(20)]

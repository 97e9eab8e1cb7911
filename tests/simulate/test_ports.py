"""Tests the search for free ports."""

import socket

import pytest

from simulate.ports import PortPicker

pytestmark = pytest.mark.unit


def test_never_pick_the_same_port_twice() -> None:
    """Two programs on the same network may pick ports before their servers listen."""
    first, second = PortPicker(), PortPicker()
    ports = [first.pick() for _ in range(25)]
    assert len({*ports, *(second.pick() for _ in range(25))}) == 50
    socket.create_server(("127.0.0.1", ports[0])).close()
    for picker in (first, second):
        picker.close()

"""Where the processes of one run meet: an address, a free port, and the network interface towards it."""

from __future__ import annotations

import fcntl
import socket
import struct

GET_ADDRESS = 0x8915  # SIOCGIFADDR of <linux/sockios.h>


def free_port() -> int:
    """Return a port of this machine that nobody listens at."""
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])


def interface_towards(host: str) -> str | None:
    """Return the network interface of this machine whose address reaches a host; None if none is known by its address.

    Gloo would resolve the name of this machine instead, which is often a loopback address that no other one reaches.

    >>> interface_towards("127.0.0.1")
    'lo'
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing: only the route is asked for
        probe.connect((host, 9))
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, GET_ADDRESS, struct.pack("256s", name[:15].encode()))
            except OSError:
                continue  # without an IPv4 address
            if socket.inet_ntoa(answer[20:24]) == own:
                return name
    return None

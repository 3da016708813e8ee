"""A free port on the machine of a Ray task. Light, so that the task's worker starts at once."""

from __future__ import annotations

import socket

import ray


def free_port_address() -> str:
    """`host:port` of a free port on the machine this runs on."""
    host = ray.util.get_node_ip_address()
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"

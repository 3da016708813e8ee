"""Joining a cluster: what is not a Ray head is said in words, in time."""

from __future__ import annotations

import socket
import time

import pytest

from relax.config.errors import ConfigError
from relax.runtime import cluster


def test_a_port_that_nobody_listens_at_is_an_error_at_once() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(ConfigError, match=rf"launcher.address={address}: no Ray cluster .*refused.*launcher=local"):
        cluster._reachable_address(address)


@pytest.mark.parametrize("address", ["head", "head:port", "127.0.0.1:99999", ":"])
def test_an_address_of_another_form_is_an_error(address: str) -> None:
    with pytest.raises(ConfigError, match="give host:port of a Ray head"):
        cluster._reachable_address(address)


def test_something_else_that_listens_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "HEALTH_TIMEOUT_SECONDS", 2.0)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        start = time.monotonic()
        with pytest.raises(ConfigError, match=rf"launcher.address=auto \(RAY_ADDRESS=127.0.0.1:{port}\).*within 2 s"):
            cluster._reachable_address(None)
    assert time.monotonic() - start < 10

"""Probes and metrics over real HTTP."""

import json
import socket
import urllib.error
import urllib.request

import pytest

from driver.http import Endpoints, HttpServer
from driver.listening import Probe, listen, split_address


@pytest.fixture
def served():
    """Start a server: ``served(address, ready=Probe(...))`` returns its port."""
    servers = []

    def start(address="127.0.0.1:0", ready=Probe(True)):  # noqa: B008 - a value
        endpoints = Endpoints(lambda: Probe(True), lambda: ready, lambda: b"metric 1\n")
        server = HttpServer(listen(address), endpoints)
        server.start()
        servers.append(server)
        return server.port

    yield start
    for server in servers:
        server.stop()


def get(port, path, host="127.0.0.1"):
    url = f"http://{host}:{port}{path}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read(), answer.headers["Content-Type"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), error.headers["Content-Type"]


def test_all_paths_answer(served):
    port = served()
    assert get(port, "/healthz")[0] == 200
    code, body, kind = get(port, "/readyz?verbose=1")
    assert (code, kind) == (200, "application/json")
    assert json.loads(body) == {"ok": True, "reasons": []}
    code, body, kind = get(port, "/metrics")
    assert (code, body) == (200, b"metric 1\n")
    assert kind.startswith("text/plain; version=0.0.4")
    code, body, _ = get(port, "/")
    assert code == 404
    assert b"/readyz" in body


def test_who_is_not_ready_says_why(served):
    code, body, _ = get(served(ready=Probe(False, ("no cards",))), "/readyz")
    assert code == 503
    assert json.loads(body) == {"ok": False, "reasons": ["no cards"]}


def test_without_a_host_both_families_are_served(served):
    port = served(":0")
    assert get(port, "/healthz")[0] == 200
    if socket.has_dualstack_ipv6():
        assert get(port, "/healthz", "[::1]")[0] == 200


@pytest.mark.skipif(not socket.has_ipv6, reason="Python without IPv6")
def test_an_ipv6_address_is_served(served):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    assert get(served("[::1]:0"), "/healthz", "[::1]")[0] == 200


def test_a_port_in_use_is_refused_with_the_option_that_changes_it(served):
    port = served()
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}.*--http-address"):
        listen(f"127.0.0.1:{port}")


@pytest.mark.parametrize("address", ["", "8080", "host:", "host:http", "host:65536", ":-1"])
def test_malformed_addresses_are_refused(address):
    with pytest.raises(ValueError, match="--http-address"):
        split_address(address)


@pytest.mark.parametrize(
    ("address", "parts"),
    [(":8080", ("", 8080)), ("h:1", ("h", 1)), ("[::1]:80", ("::1", 80)), ("::1:80", ("::1", 80))],
)
def test_addresses_are_split_at_the_port(address, parts):
    assert split_address(address) == parts

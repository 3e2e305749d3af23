"""ServiceClient against a real `ashlar serve` in front of tiny engines, and servers that misbehave."""

import contextlib
import json
import pathlib
import socket
import subprocess
import sys
import threading
import time

import ashlar
import pytest
from ashlar.service import ServiceClient

PROGRAM = pathlib.Path(ashlar.__file__).parent / "bin" / "ashlar"
TINY_SERVER = pathlib.Path(sys.prefix).parents[2] / "bin" / "tiny_server"  # of the build
TOKEN = "a secret of the test"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def process(command, ready):
    """A program that runs until the end of the block; yields the first line that says `ready`."""
    child = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
    try:
        for line in child.stdout:
            if line.startswith(ready):
                yield line
                return
        raise OSError(f"{command[0]} does not start")
    finally:
        child.kill()
        child.stdout.close()
        child.wait()


@contextlib.contextmanager
def engine():
    for _ in range(20):  # another process may take a port between the look and the use
        http, events, replay = free_port(), free_port(), free_port()
        command = [TINY_SERVER, "--port", http, "--events", events, "--replay", replay]
        started = contextlib.ExitStack()
        try:
            started.enter_context(process(command, f"listening http={http} "))
        except OSError:
            continue
        with started:
            yield f"http://127.0.0.1:{http},events=tcp://127.0.0.1:{events},replay=tcp://127.0.0.1:{replay}"
        return
    raise OSError("no engine starts")


@pytest.fixture(scope="module")
def service():
    for program in (PROGRAM, TINY_SERVER):
        if not program.exists():
            pytest.skip(f"{program} is not built")
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(engine()) for _ in range(2)]
        command = [PROGRAM, "serve", "--port", 0, "--log-level", "error"]
        for name, worker in zip("ab", workers):
            command += ["--worker", f"{worker},name={name}"]
        line = stack.enter_context(process(command, "listening on "))
        client = ServiceClient(line.split("listening on ")[1].split(",")[0].strip(), token=TOKEN)
        last = time.monotonic() + 120
        while time.monotonic() < last:  # until every worker is up and its events are followed
            workers = client.fleet()["workers"]
            states = [rank["state"] for worker in workers for rank in worker["ranks"]]
            if all(worker["up"] for worker in workers) and set(states) == {"EXACT"}:
                break
            time.sleep(0.01)
        yield client


def test_health_fleet_models_and_metrics(service):
    assert service.health() and service.ready()
    assert sorted(worker["name"] for worker in service.fleet()["workers"]) == ["a", "b"]
    assert service.models() == ["tiny"]
    metrics = service.metrics()
    assert metrics and all(isinstance(value, float) for value in metrics.values())


def test_a_request_has_a_receipt(service):
    answer = service.post("/v1/completions", {"model": "tiny", "max_tokens": 2, "prompt": list(range(1, 65))})
    assert answer.status == 200 and answer.json()["choices"]
    assert answer.worker in ("a", "b") and answer.state in ("EXACT", "DEGRADED", "FALLBACK")
    assert answer.cached_tokens == 0
    receipt = service.receipt(answer.decision_id)
    assert len(receipt["candidates"]) == 2
    assert service.receipts(limit=1)
    # What the worker now holds is found by tokens, once its events have come.
    last, held = time.monotonic() + 120, {}
    while not held and time.monotonic() < last:
        held = service.route(range(1, 65), "tiny")["instances"]
    assert max(instance["longest_matched"] for instance in held.values()) >= 16
    assert service.dump()
    assert service.workers() is not None


def test_errors_of_the_service_are_of_the_tree(service):
    with pytest.raises(ashlar.NotFound) as caught:
        service.receipt("0123456789abcdef-42")
    assert caught.value.status == 404
    with pytest.raises(ashlar.InvalidArgument, match="hexadecimal"):
        service.receipt("no such decision")
    with pytest.raises(ashlar.NotFound):
        service.post("/v1/completions", {"model": "another", "prompt": "x"})
    with pytest.raises(ashlar.InvalidArgument):
        service.route_hashes([1, 2], "tiny", cache_salt="salt")
    with pytest.raises(ashlar.InvalidArgument):
        service.request("GET", "/no path")
    with pytest.raises(ashlar.CapacityError, match="max_bytes"):
        ServiceClient(service.address, max_bytes=100).metrics()
    with pytest.raises(ashlar.NotFound):
        service.unregister(77, "tiny")


@contextlib.contextmanager
def misbehaving(behave):
    """A server that calls behave(connection) for one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def serve():
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    behave(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield "127.0.0.1:" + str(listener.getsockname()[1])
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # a client that never came
            thread.join()


def drip(connection):
    """An answer that never ends, one byte at a time: no single read is late."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
    while True:
        connection.sendall(b"x")
        time.sleep(0.001)


def endless(connection):
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        connection.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")


def test_a_slow_answer_ends_with_the_deadline():
    with misbehaving(drip) as address, pytest.raises(ashlar.Timeout):
        ServiceClient(address, timeout=0.2).fleet()
    with misbehaving(lambda connection: connection.recv(65536) and connection.recv(1)) as address:
        with pytest.raises(ashlar.Timeout):
            ServiceClient(address, timeout=0.2).fleet()


def test_an_endless_answer_ends_with_the_limit():
    with misbehaving(endless) as address, pytest.raises(ashlar.CapacityError):
        ServiceClient(address, max_bytes=1 << 20).fleet()


@pytest.mark.parametrize("answer,error", [
    (b"no http at all\r\n\r\n", ashlar.CorruptionError),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{", ashlar.CorruptionError),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{no", ashlar.CorruptionError),
    (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 5000 + b"\r\n", ashlar.CorruptionError),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999999999\r\n\r\n{}", ashlar.CorruptionError),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffff\r\n{}", ashlar.CorruptionError),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}", ashlar.CorruptionError),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"[" * 100000, ashlar.CorruptionError),
    (b"HTTP/1.1 400 No\r\nContent-Length: 100000\r\n\r\n" + b"[" * 100000, ashlar.InvalidArgument),
    (b"", ashlar.Unavailable),
    (b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", ashlar.InternalError),
    (b"HTTP/1.1 429 Full\r\nContent-Length: 0\r\n\r\n", ashlar.CapacityError),
    (b"HTTP/1.1 504 Late\r\nContent-Length: 0\r\n\r\n", ashlar.Timeout),
])
def test_an_answer_that_is_none_is_an_error(answer, error):
    def behave(connection):
        connection.recv(65536)
        connection.sendall(answer)

    with misbehaving(behave) as address, pytest.raises(error):
        ServiceClient(address, timeout=60).fleet()


def test_the_token_and_headers_are_sent():
    heard = []

    def behave(connection):
        heard.append(connection.recv(65536))
        body = json.dumps({"workers": []}).encode()
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    with misbehaving(behave) as address:
        assert ServiceClient("http://" + address, token=TOKEN).fleet() == {"workers": []}
    assert b"x-ashlar-token: " + TOKEN.encode() in heard[0]


def test_nothing_there_is_unavailable():
    with socket.socket() as taken:  # bound, so that nobody else gets it, and not listening
        taken.bind(("127.0.0.1", 0))
        client = ServiceClient(f"127.0.0.1:{taken.getsockname()[1]}")
        assert not client.health() and not client.ready()
        with pytest.raises(ashlar.Unavailable):
            client.fleet()
    for bad in ("https://host:1", "http://", "host:port", "http://host:99999"):
        with pytest.raises(ashlar.InvalidArgument):
            ServiceClient(bad)
    with pytest.raises(ashlar.InvalidArgument):
        ServiceClient("host:1", timeout=0)

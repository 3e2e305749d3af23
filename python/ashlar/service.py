"""A client of `ashlar serve`: its health, fleet, metrics and receipts, questions to its index, and requests.

    from ashlar.service import ServiceClient
    client = ServiceClient("http://127.0.0.1:8080")
    answer = client.post("/v1/completions", {"model": "tiny", "prompt": "Hello"})
    print(answer.worker, answer.cached_tokens, client.receipt(answer.decision_id))

Every call has a deadline for the whole of it, from connecting to the last byte (only the look-up of a host
name is left to the system), and a limit of bytes. Failures are errors of the package: Unavailable (no
connection, 502, 503), Timeout (the deadline, 504), CapacityError (429, or an answer beyond the limit),
InvalidArgument (400, 401, 413 and their like), NotFound (404), AlreadyExists (409), CorruptionError (an
answer that is no HTTP or no JSON).

A client holds no connection between calls. It may be used by several threads.
"""

import http.client
import io
import json
import socket
import time
import typing
import urllib.parse

from ashlar import _native

__all__ = ["Answer", "ServiceClient"]

_ERRORS = {
    404: _native.NotFound, 409: _native.AlreadyExists, 429: _native.CapacityError,
    502: _native.Unavailable, 503: _native.Unavailable, 504: _native.Timeout,
}


class Answer(typing.NamedTuple):
    """What the service answered to a request that it passed on to a worker."""

    status: int
    headers: typing.Dict[str, str]  # by their names in lower case
    body: bytes

    def json(self) -> typing.Any:
        """The body as JSON. Raises CorruptionError if it is none."""
        return _parse(self.body)

    @property
    def worker(self) -> typing.Optional[str]:
        """The name of the worker that answered."""
        return self.headers.get("x-ashlar-worker")

    @property
    def state(self) -> typing.Optional[str]:
        """How well the worker's blocks were known: EXACT, DEGRADED or FALLBACK."""
        return self.headers.get("x-ashlar-state")

    @property
    def cached_tokens(self) -> typing.Optional[int]:
        """Prompt tokens that the worker was expected to have; None where the tokens were not known."""
        value = self.headers.get("x-ashlar-cached-tokens", "")
        return int(value) if value.isascii() and value.isdigit() and len(value) < 20 else None

    @property
    def decision_id(self) -> typing.Optional[str]:
        """Names the choice, for ServiceClient.receipt()."""
        return self.headers.get("x-ashlar-decision-id")


class _Deadline:
    """The end of a call, and what may still be read in it."""

    def __init__(self, seconds: float, max_bytes: int):
        self.seconds, self.max_bytes = seconds, max_bytes
        self.end = time.monotonic() + seconds
        self.read = 0

    def left(self) -> float:
        left = self.end - time.monotonic()
        if left <= 0:
            raise socket.timeout("timed out")
        return left

    def count(self, size: int) -> None:
        self.read += size
        if self.read > self.max_bytes:
            raise _native.CapacityError(
                f"the answer has more than {self.max_bytes} bytes; raise max_bytes to read it")


class _TimedReader(io.RawIOBase):
    """Reads a socket until the deadline. Its end leaves the socket open."""

    def __init__(self, sock: socket.socket, deadline: _Deadline):
        self._sock, self._deadline = sock, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        self._sock.settimeout(self._deadline.left())
        size = self._sock.recv_into(buffer)
        self._deadline.count(size)
        return size


class _TimedSocket:
    """A socket for http.client whose every read and write ends by the deadline."""

    def __init__(self, sock: socket.socket, deadline: _Deadline):
        self._sock, self._deadline = sock, deadline

    def sendall(self, data) -> None:
        view = memoryview(data).cast("B")
        while len(view) > 0:
            self._sock.settimeout(self._deadline.left())
            view = view[self._sock.send(view):]

    def makefile(self, *_args, **_kwargs) -> io.BufferedReader:
        return io.BufferedReader(_TimedReader(self._sock, self._deadline), 65536)

    def close(self) -> None:
        self._sock.close()


def _connect(host: str, port: int, deadline: _Deadline) -> _TimedSocket:
    failure: typing.Optional[OSError] = None
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:
            failure = error
            continue
        try:
            sock.settimeout(deadline.left())
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return _TimedSocket(sock, deadline)
        except socket.timeout:
            sock.close()
            raise
        except OSError as error:
            sock.close()
            failure = error
    raise failure or OSError(f"{host} has no address")


def _read(response: http.client.HTTPResponse) -> bytes:
    """The whole body, in pieces: what a length promises is not allocated before it comes."""
    pieces = []
    while piece := response.read(65536):
        pieces.append(piece)
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    return b"".join(pieces)


def _parse(body: bytes) -> typing.Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _native.CorruptionError(f"the service's answer is no JSON: {error}") from None


def _query(**values: typing.Any) -> str:
    given = {name: value for name, value in values.items() if value is not None}
    return "?" + urllib.parse.urlencode(given) if given else ""


class ServiceClient:
    """Asks one `ashlar serve`.

    address: "http://HOST:PORT" or "HOST:PORT". token: sent as x-ashlar-token. timeout: seconds of a whole
    call. max_bytes: of a whole answer.
    """

    def __init__(self, address: str, *, token: typing.Optional[str] = None, timeout: float = 30.0,
                 max_bytes: int = 64 << 20):
        text = address if "://" in address else "http://" + address
        try:
            parts = urllib.parse.urlsplit(text)
            host, port = parts.hostname, parts.port
            if host:
                http.client.HTTPConnection(host, port)  # has rules of its own for a host
        except (ValueError, http.client.InvalidURL) as error:
            raise _native.InvalidArgument(f"{address!r} is no address: {error}") from None
        if parts.scheme != "http" or not host:
            raise _native.InvalidArgument(f"{address!r} is no address: give http://HOST:PORT")
        if not timeout > 0 or max_bytes <= 0:
            raise _native.InvalidArgument("timeout and max_bytes must be above 0")
        self._host, self._port = host, 80 if port is None else port
        self._token, self._timeout, self._max_bytes = token, timeout, max_bytes

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"{self._host}:{self._port}"

    # ---- the service itself

    def health(self) -> bool:
        """Whether the service runs: False where nothing answers."""
        return self._is_ok("/health")

    def ready(self) -> bool:
        """Whether a worker is up."""
        return self._is_ok("/ready")

    def fleet(self) -> typing.Dict[str, typing.Any]:
        """Every worker and rank: state, reason, events, load, blocks by tier."""
        return self._get("/fleet")

    def models(self) -> typing.List[str]:
        """The models of all workers."""
        answer = self._get("/v1/models")
        try:
            return [model["id"] for model in answer["data"]]
        except (KeyError, TypeError):
            raise _native.CorruptionError("the list of models has another form") from None

    def metrics(self) -> typing.Dict[str, float]:
        """Every metric by its name with labels, as in "ashlar_serve_requests_total{…}"."""
        values = {}
        for line in self.request("GET", "/metrics").body.decode("utf-8", "replace").splitlines():
            name, _, value = line.rpartition(" ")
            if line.startswith("#") or not name:
                continue
            try:
                values[name] = float(value)
            except ValueError:
                raise _native.CorruptionError(f"no metric: {line[:80]!r}") from None
        return values

    # ---- requests and their receipts

    def post(self, path: str, body: typing.Any, headers: typing.Optional[typing.Mapping[str, str]] = None,
             *, timeout: typing.Optional[float] = None) -> Answer:
        """Sends a request that the service routes, such as "/v1/completions". body: bytes, or what becomes
        JSON. Raises the error of an answer that is not 2xx."""
        if not isinstance(body, (bytes, bytearray, memoryview)):
            body = json.dumps(body).encode()
        return self.request("POST", path, bytes(body), headers, timeout=timeout)

    def receipt(self, decision_id: str) -> typing.Dict[str, typing.Any]:
        """Why a request went where it went: all candidates, what each had, its load and the terms of its
        cost; and afterwards how it ended. Raises NotFound for one that is no longer kept."""
        return self._get("/decisions/" + urllib.parse.quote(decision_id, safe=""))

    def receipts(self, limit: typing.Optional[int] = None) -> typing.List[typing.Dict[str, typing.Any]]:
        """The last receipts, the youngest first."""
        answer = self._get("/decisions" + _query(limit=limit))
        receipts = answer.get("decisions") if isinstance(answer, dict) else answer
        if not isinstance(receipts, list):
            raise _native.CorruptionError("the list of receipts has another form")
        return receipts

    # ---- questions without a proxy

    def register(self, instance_id: int, endpoint: str, model_name: str, block_size: int,
                 **more: typing.Any) -> None:
        """Listens to the events of a worker, for questions only."""
        self._ask("/register", instance_id=instance_id, endpoint=endpoint, model_name=model_name,
                  block_size=block_size, **more)

    def unregister(self, instance_id: int, model_name: str, **more: typing.Any) -> None:
        """Ends that. Raises NotFound."""
        self._ask("/unregister", instance_id=instance_id, model_name=model_name, **more)

    def workers(self, model_name: typing.Optional[str] = None,
                routing_group: typing.Optional[str] = None) -> typing.Any:
        """Workers with their endpoints and listeners."""
        return self._get("/workers" + _query(model_name=model_name, routing_group=routing_group))

    def route(self, token_ids: typing.Iterable[int], model_name: str,
              **more: typing.Any) -> typing.Dict[str, typing.Any]:
        """How much of a prompt each worker holds, in tokens. more: routing_group, lora_name, cache_salt."""
        return self._ask("/query", token_ids=[int(token) for token in token_ids], model_name=model_name,
                         **more)

    def route_hashes(self, local_hashes: typing.Iterable[int], model_name: str,
                     **more: typing.Any) -> typing.Dict[str, typing.Any]:
        """The same by the local hashes of the prompt's blocks."""
        return self._ask("/query_by_hash", block_hashes=[int(local) for local in local_hashes],
                         model_name=model_name, **more)

    def dump(self) -> typing.Dict[str, typing.Any]:
        """What the index of every model and routing group holds."""
        return self._get("/dump")

    # ---- any path

    def request(self, method: str, path: str, body: typing.Optional[bytes] = None,
                headers: typing.Optional[typing.Mapping[str, str]] = None, *,
                timeout: typing.Optional[float] = None) -> Answer:
        """One request and its whole answer. Raises the error of an answer that is not 2xx, with the status in
        its attribute `status`."""
        sent = {"Connection": "close"}
        if body is not None:
            sent["Content-Type"] = "application/json"
        if self._token is not None:
            sent["x-ashlar-token"] = self._token
        sent.update(headers or {})
        answer = self._exchange(method, path, body, sent, self._timeout if timeout is None else timeout)
        if 200 <= answer.status < 300:
            return answer
        raise _error_of(answer, f"{method} {path}")

    def _exchange(self, method: str, path: str, body: typing.Optional[bytes],
                  headers: typing.Mapping[str, str], timeout: float) -> Answer:
        deadline = _Deadline(timeout, self._max_bytes)
        connection = http.client.HTTPConnection(self._host, self._port)
        try:
            connection.sock = _connect(self._host, self._port, deadline)
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            content = _read(response)
            named = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, named, content)
        except socket.timeout:
            raise _native.Timeout(f"{self.address} did not answer {method} {path} whole within "
                                  f"{deadline.seconds:g} s") from None
        except http.client.InvalidURL as error:
            raise _native.InvalidArgument(f"{path!r} is no path: {error}") from None
        except http.client.RemoteDisconnected:
            raise _native.Unavailable(f"{self.address} closed the connection") from None
        except http.client.HTTPException as error:
            raise _native.CorruptionError(
                f"the answer of {self.address} is no HTTP, or not whole: {type(error).__name__} {error}"
            ) from None
        except _native.AshlarError:
            raise
        except OSError as error:
            raise _native.Unavailable(f"{self.address} cannot be reached: {error}") from None
        except ValueError as error:
            raise _native.InvalidArgument(f"{method} {path!r} cannot be sent: {error}") from None
        finally:
            connection.close()

    def _is_ok(self, path: str) -> bool:
        try:
            self.request("GET", path)
        except _native.Unavailable:
            return False
        return True

    def _get(self, path: str) -> typing.Any:
        return _parse(self.request("GET", path).body)

    def _ask(self, path: str, **body: typing.Any) -> typing.Any:
        answer = self.post(path, body)
        return _parse(answer.body) if answer.body else None


def _error_of(answer: Answer, what: str) -> Exception:
    """The exception of an answer that is not 2xx; its sentence is the service's own where it has one."""
    said: typing.Any = None
    try:
        said = json.loads(answer.body)["error"]
        said = said["message"] if isinstance(said, dict) else said
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    kind = _ERRORS.get(answer.status)
    if kind is None:
        kind = _native.InvalidArgument if 300 <= answer.status < 500 else _native.InternalError
    error = kind(f"{what}: status {answer.status}" + (f": {said}" if said else ""))
    error.status = answer.status
    return error

"""A program that calls a sidecar as a user whom the sidecar may not know.

``calls ADDRESS [PATH...]`` calls these methods, or every method, and prints the code and the message of each as JSON. ``race PORT COUNT`` reads the bytes
of a call, and sends them on COUNT connections that it ends in different ways, from few ports, so that the sidecar may ask
who has connected when the connection is over already. ``knock PATH`` connects to a Unix socket again and again until its input
ends, and prints how often that succeeded. ``squat PORT|PATH`` serves in the place of a sidecar until its input ends, and prints
how many connections it got, and how many bytes.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import pkgutil
import random
import select
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.descriptor import MethodDescriptor

#: How long one call may take.
LIMIT = 5.0
HEALTH = "grpc.health.v1.Health/Check"
REFLECTION = "grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
#: The ports from which racing connections come.
PORTS = range(20_100, 20_108)


def descriptors() -> Iterator[MethodDescriptor]:
    """Each method of the protos."""
    import sidekeeper._proto.v1 as protos

    modules = [
        importlib.import_module(f"{protos.__name__}.{found.name}") for found in pkgutil.iter_modules(protos.__path__)
    ]
    for module in modules:
        if hasattr(module, "DESCRIPTOR"):
            for service in module.DESCRIPTOR.services_by_name.values():
                yield from service.methods


def methods() -> Iterator[tuple[str, bool]]:
    """The path of each method of the protos, and whether it answers with a stream. `Drain` comes last."""
    found = [
        (f"{method.containing_service.full_name}/{method.name}", method.server_streaming) for method in descriptors()
    ]
    return iter(sorted(found, key=lambda method: method[0].endswith("/Drain")))


def calls(
    address: str, token: str = "", wanted: Iterable[tuple[str, bool]] | None = None
) -> dict[str, tuple[str, str]]:
    """The code and the message of each call without fields: of these methods, or of all."""
    import grpc

    outcomes = {}
    metadata = [("authorization", f"Bearer {token}")] if token else []
    if wanted is None:
        wanted = itertools.chain([(HEALTH, False), (REFLECTION, True)], methods())
    # Without it the name of the authority would be the path of the socket, which no server accepts.
    with grpc.insecure_channel(address, [("grpc.default_authority", "localhost")]) as channel:
        for path, streams in wanted:
            try:
                if path == REFLECTION:
                    next(channel.stream_stream(f"/{path}")(iter([b""]), timeout=LIMIT, metadata=metadata))
                elif streams:
                    next(channel.unary_stream(f"/{path}")(b"", timeout=LIMIT, metadata=metadata))
                else:
                    channel.unary_unary(f"/{path}")(b"", timeout=LIMIT, metadata=metadata)
                outcomes[path] = ("OK", "")
            except StopIteration:
                outcomes[path] = ("OK", "")
            except grpc.RpcError as error:
                outcomes[path] = (error.code().name, error.details())
    return outcomes


def race(port: int, count: int, call: bytes) -> None:
    """Sends the call on so many connections."""
    draw = random.Random(count)
    for number in range(count):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Another connection may have the port, or have had it a moment ago.
        with contextlib.suppress(OSError), connection:
            if number % 2:
                connection.bind(("127.0.0.1", draw.choice(PORTS)))
            connection.connect(("127.0.0.1", port))
            connection.sendall(call)
            if number % 5 == 0:
                connection.shutdown(socket.SHUT_WR)
            elif number % 5 < 3:
                # A reset.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif number % 5 == 3:
                connection.settimeout(0.01)
                connection.recv(1)


def knock(path: str) -> int:
    """How often it could connect."""
    print("knocking", flush=True)
    successes = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
                connection.connect(path)
                successes += 1
    return successes


def squat(place: str) -> tuple[int, int]:
    """How many connections came to a port or a socket, and how many bytes on all of them."""
    if place.isdecimal():
        server = socket.create_server(("127.0.0.1", int(place)))
    else:
        server = socket.socket(socket.AF_UNIX)
        server.bind(place)
        server.listen()
    print("squatting", flush=True)
    opened: list[socket.socket] = []
    count = received = 0
    while True:
        for ready in select.select([sys.stdin, server, *opened], [], [])[0]:
            if ready is sys.stdin:
                return count, received
            if ready is server:
                opened.append(server.accept()[0])
                count += 1
                continue
            data = b""
            with contextlib.suppress(OSError):
                data = ready.recv(65_536)
            received += len(data)
            if not data:
                opened.remove(ready)


if __name__ == "__main__":
    if sys.argv[1] == "squat":
        print(json.dumps(squat(sys.argv[2])))
    elif sys.argv[1] == "knock":
        print(knock(sys.argv[2]))
    elif sys.argv[1] == "calls":
        print(json.dumps(calls(sys.argv[2], wanted=[(path, False) for path in sys.argv[3:]] or None)))
    else:
        race(int(sys.argv[2]), int(sys.argv[3]), sys.stdin.buffer.read())

"""What surrounds servers and sidecars, and how a test changes it: settings, limits, clocks, disks and names."""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

import pytest

from faults.ensemble import Ensemble, Server
from support.processes import Process, free_port, sidekeeper_binary

#: ZooKeeper's transaction log: the file's header, and before each transaction its checksum and its length.
LOG_HEADER = 16
ENTRY_HEADER = struct.Struct(">qi")

HOW_TO_INSTALL = "install Debian's package {}, or run `.ci/setup faults`"


@dataclass(frozen=True)
class Wanted:
    """An ensemble that is not like the shared one."""

    servers: int = 1
    #: Lines of each server's configuration.
    settings: Mapping[str, object] = field(default_factory=dict)
    #: Options of each server's JVM.
    java: Sequence[str] = ()
    #: Gives what stands before `java` in each server's command.
    command: Callable[[], list[str]] = list


class OddServer(Server):
    """A server with settings of its own, which another command may start."""

    def __init__(self, number: int, folder: Path, peers: dict[int, str], wanted: Wanted):
        self._wanted = wanted
        #: What stands before `java` in the command.
        self.command = wanted.command()
        #: Options of its JVM besides those that all servers have.
        self.more_java: list[str] = []
        self._java: list[str] = []
        self._rest: list[str] = []
        super().__init__(number, folder, peers, {})

    def start(self) -> None:
        if not self._java:
            with self.configuration.open("a") as configuration:
                configuration.writelines(f"{key}={value}\n" for key, value in self._wanted.settings.items())
            java, *rest = self._arguments
            classpath = rest.index("-cp")
            self._java = [java, *rest[:classpath], *self._wanted.java]
            self._rest = rest[classpath:]
        self._arguments = [*self.command, *self._java, *self.more_java, *self._rest]
        super().start()


class OddEnsemble(Ensemble):
    """Servers of which one or all are not like the shared ones."""

    def __init__(self, folder: Path, wanted: Wanted):
        self.folder = folder
        self.peers = {number: self.place() for number in range(1, wanted.servers + 1)}
        self.wanted = wanted
        self.servers: list[Server] = []
        # These servers reach each other directly.
        self._links = {}
        for number in self.peers:
            self.servers.append(OddServer(number, folder, self.peers, wanted))
        self.wait_serving()

    @staticmethod
    def place() -> str:
        """A place for one more server, as configurations name it."""
        return f"127.0.0.1:{free_port()}:{free_port()}"

    def server(self, number: int) -> OddServer:
        server = next(server for server in self.servers if server.number == number)
        assert isinstance(server, OddServer)
        return server

    def add(self) -> OddServer:
        """Starts one more server, which knows the others; they do not know it yet."""
        number = max(self.peers) + 1
        self.peers = {server.number: self.peers[server.number] for server in self.servers} | {number: self.place()}
        server = OddServer(number, self.folder, self.peers, self.wanted)
        self.servers.append(server)
        return server


def needs(program: str, package: str) -> str:
    """The path of a program that a fault is inflicted with; fails the test if it is not there."""
    path = shutil.which(program)
    if path is None:
        pytest.fail(f"`{program}` is missing: {HOW_TO_INSTALL.format(package)}", pytrace=False)
    return path


def sidecar_in(monkeypatch: pytest.MonkeyPatch, folder: Path, *command: str) -> None:
    """Has sidecars that are started from now on run inside another command."""
    script = folder / "sidekeeper"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} {shlex.quote(str(sidekeeper_binary()))} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("SIDEKEEPER_BINARY", str(script))


class FakeClock:
    """A clock that is wrong: the time of day of the processes that it is given to. Monotonic clocks stay right."""

    def __init__(self, file: Path):
        self._file = file
        self.set(0.0)

    def set(self, seconds: float) -> None:
        """Has the clock differ by so many seconds from the right time, from now on."""
        # Replaced as a whole: no process reads half of it.
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+.3f}\n")
        new.rename(self._file)

    def command(self) -> list[str]:
        """What stands before the command of a process that goes by this clock."""
        library = preloadable("libfaketimeMT.so.1", "libfaketime")
        variables = {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": self._file,
            # In seconds: a process that reads its clock all the time does not read the file as often.
            "FAKETIME_CACHE_DURATION": 1,
            "FAKETIME_DONT_FAKE_MONOTONIC": 1,
            # A JVM does not start otherwise.
            "FAKETIME_FORCE_MONOTONIC_FIX": 0,
        }
        return ["env", *(f"{name}={value}" for name, value in variables.items())]


def slow_disk(seconds: float) -> list[str]:
    """What stands before the command of a process whose disk takes so long for each write that has to be safe."""
    strace = needs("strace", "strace")
    calls = "fsync,fdatasync"
    delay = f"inject={calls}:delay_enter={int(seconds * 1e6)}"
    # The tracer is no parent of the process, so that signals reach the process itself.
    return [
        strace,
        "-D",
        "-f",
        "-qqq",
        "--seccomp-bpf",
        "-o",
        os.devnull,
        "-e",
        f"trace={calls}",
        "-e",
        delay,
    ]


def damage(log: Path) -> None:
    """Changes the content of a transaction in the middle of a server's log; its length and its end mark stay.

    A server that misses the end mark takes the transaction for its last one, and starts without those that follow.
    """
    content = bytearray(log.read_bytes())
    transactions: list[tuple[int, int]] = []
    at = LOG_HEADER
    while at + ENTRY_HEADER.size <= len(content):
        _, length = ENTRY_HEADER.unpack_from(content, at)
        if length <= 0:
            break
        begin = at + ENTRY_HEADER.size
        transactions.append((begin, begin + length))
        at = begin + length + 1
    begin, end = transactions[len(transactions) // 2]
    content[begin:end] = bytes(byte ^ 0xFF for byte in content[begin:end])
    log.write_bytes(content)


def limit(process: Process, what: int, soft: int) -> int:
    """Limits what a process may have from now on; returns what its limit was."""
    before, hard = resource.prlimit(process.popen.pid, what)
    resource.prlimit(process.popen.pid, what, (soft, hard))
    return before


class NamedHost:
    """A host that processes started with `command` find by its name."""

    def __init__(self, file: Path, name: str, address: str):
        self._file = file
        self._name = name
        self.lead_to(address)
        library = preloadable("libnss_wrapper.so", "libnss-wrapper")
        self.command = ["env", f"LD_PRELOAD={library}", f"NSS_WRAPPER_HOSTS={file}"]

    def lead_to(self, address: str) -> None:
        """Has the name lead to this address from now on."""
        # Replaced as a whole: a reader that finds an empty file keeps it if the next write has the same time.
        new = self._file.with_suffix(".new")
        new.write_text(f"{address} {self._name}\n")
        new.rename(self._file)


def preloadable(name: str, package: str) -> Path:
    """The path of a library that a fault is inflicted with; fails the test if it is not there."""
    found = [path for folder in ("/usr/lib", "/usr/lib64", "/usr/local/lib") for path in Path(folder).rglob(name)]
    if not found:
        pytest.fail(f"`{name}` is missing: {HOW_TO_INSTALL.format(package)}", pytrace=False)
    return found[0]


class Relay:
    """Hands connections to one address of this machine on to a port of another one."""

    def __init__(self, host: str, port: int, target: int):
        self._target = target
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server((host, port))
        self.port = self._listener.getsockname()[1]
        #: Changes the bytes that a server sends.
        self.edit: Callable[[bytes], bytes] = bytes
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                ours, _ = self._listener.accept()
                theirs = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [ours, theirs]
                for down, one, other in ((False, ours, theirs), (True, theirs, ours)):
                    threading.Thread(target=self._carry, args=(down, one, other), daemon=True).start()

    def _carry(self, down: bool, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                other.sendall(self.edit(data) if down else data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """Ends the connections that there are."""
        for end in self._sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._sockets.clear()

    def end(self) -> None:
        """Refuses new connections, and ends those that there are."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()


#: A server's answer before its body: its length, the request's number, the transaction, and the error.
_ANSWER = struct.Struct(">iiqi")

#: Before each part of an answer to several reads: the kind of the read, whether the answer ends here, and the error.
_PART = struct.Struct(">i?i")
_DATA, _CHILDREN = 4, 8

#: Bytes of a node's metadata, which follow its data.
_STAT = 68


def with_endless_lists(data: bytes) -> tuple[bytes, int]:
    """Says of each list of children in answers to several reads that it has 2^31 - 1 names. Returns the answers, and how
    many lists were changed."""
    edited, lists, at = bytearray(data), 0, 0
    with suppress(struct.error):
        while at < len(data):
            length, _, _, error = _ANSWER.unpack_from(data, at)
            end = at + 4 + length
            for place in _lists(data[:end], at + _ANSWER.size) if error == 0 else []:
                struct.pack_into(">i", edited, place, 2**31 - 1)
                lists += 1
            at = end
    return bytes(edited), lists


def _lists(answer: bytes, at: int) -> list[int]:
    """Where the lists of children begin in an answer to several reads. None, for other answers."""
    places: list[int] = []
    try:
        while True:
            kind, is_end, _ = _PART.unpack_from(answer, at)
            at += _PART.size
            if is_end:
                return places if at == len(answer) else []
            (count,) = struct.unpack_from(">i", answer, at)
            if kind == _CHILDREN:
                places.append(at)
            at += 4 + (count + _STAT if kind == _DATA else 0)
            for _ in range(count if kind == _CHILDREN else 0):
                at += 4 + struct.unpack_from(">i", answer, at)[0]
    except struct.error:
        return []


#: How often a session is asked for whose sidecar asks for it as well.
ATTEMPTS = 10

#: A request to end a session: its length, a number, and the operation.
CLOSE_SESSION = struct.pack(">iii", 8, 1, -11)


def attach_to_session(port: int, file: Path, then: bytes = b"") -> socket.socket:
    """Makes one more connection for the session in a sidecar's file, as its client would. `then` is sent with it."""
    written = json.loads(file.read_text())
    password = bytes(written["password"])
    body = struct.pack(">iqiqi", 0, 0, written["timeout_ms"], written["session"], len(password)) + password + b"\0"
    for attempt in range(ATTEMPTS):
        connection = socket.create_connection(("127.0.0.1", port), timeout=10)
        connection.sendall(struct.pack(">i", len(body)) + body + then)
        length = connection.recv(4, socket.MSG_WAITALL)
        if len(length) < 4:
            # The sidecar, which connects anew, was faster.
            connection.close()
            continue
        answer = connection.recv(*struct.unpack(">i", length), socket.MSG_WAITALL)
        _, _, accepted = struct.unpack(">iiq", answer[:16])
        # An attempt that got no answer may have ended the session.
        ended = attempt > 0 and then == CLOSE_SESSION
        assert accepted == written["session"] or ended, f"the server did not accept the session: {accepted:#x}"
        return connection
    raise AssertionError(f"no answer from the server in {ATTEMPTS} attempts")

"""Health: what an exec probe asks a running launcher, over a socket that leaves no file.

The socket's name is in Linux's abstract namespace, which belongs to the network namespace: a
probe in the same pod finds it, nothing outside does, and it is gone with the launcher. On the
host's network others can make such names too, and connect: so the kernel is asked who is at
the other end (SO_PEERCRED, unix(7)): whoever is another user is nobody, and a launcher of the
own container goes before those of other ones.
The name ends with a random part: it cannot be taken in advance.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import ssl
import struct
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NamedTuple

from fixes.launch.plan import Settings, option

PREFIX = "vllm-fixes-launch/"
#: Seconds for a completion: the whole answer is to be there within 5.
COMPLETION = 4.0
_ASKERS = 256

Check = Callable[[], str]


class Endpoint(NamedTuple):
    """Where the head's engine serves HTTP, and what it asks for; ``path`` of a Unix socket."""

    host: str
    port: int
    tls: bool
    key: str
    path: str = ""


def endpoint(made: Settings, environ: Mapping[str, str]) -> Endpoint:
    """The endpoint, from the engine's own options."""
    given = option(made.arguments, "--host")
    host = given if given and given not in ("0.0.0.0", "::") else "127.0.0.1"
    key = option(made.arguments, "--api-key") or environ.get("VLLM_API_KEY", "")
    tls = bool(option(made.arguments, "--ssl-certfile"))
    return Endpoint(host, made.api_port, tls, key, option(made.arguments, "--uds"))


def complete(where: Endpoint) -> str:
    """Have one token made by the whole replica; why that failed, or nothing.

    A model that makes no text has no completions, and answers 404: then its health counts.
    """
    try:
        status, body = _ask(where, "GET", "/v1/models", None)
        if status != 200:
            return f"/v1/models answers {status}"
        served = json.loads(body)["data"]
        if served == []:  # a frontend that no engine has come to
            return "no model is served yet"
        name = str(served[0]["id"])
        question = {"model": name, "prompt": "a", "max_tokens": 1, "temperature": 0}
        status, body = _ask(where, "POST", "/v1/completions", question)
        if status in (404, 405):
            status, body = _ask(where, "GET", "/health", None)
            return "" if status == 200 else f"/health answers {status}"
        if status != 200:
            return f"a completion of one token ended with {status}"
        return "" if json.loads(body)["choices"] else "a completion of one token came back empty"
    except (LookupError, TypeError, RecursionError):
        return "no completion of one token: the answer is none of vLLM's"
    except (OSError, HTTPException, ValueError) as error:
        return f"no completion of one token: {error or type(error).__name__}"


def _ask(where: Endpoint, method: str, path: str, question: object) -> tuple[int, bytes]:
    made: HTTPConnection
    if where.path:
        made = _UnixConnection(where.path)
    elif where.tls:  # to itself: whose certificate it is does not matter
        context = ssl._create_unverified_context()
        made = HTTPSConnection(where.host, where.port, timeout=COMPLETION, context=context)
    else:
        made = HTTPConnection(where.host, where.port, timeout=COMPLETION)
    headers = {"Content-Type": "application/json"}
    if where.key:
        headers["Authorization"] = f"Bearer {where.key}"
    try:
        made.request(method, path, json.dumps(question) if question else None, headers)
        answer = made.getresponse()
        return answer.status, answer.read(1 << 20)
    finally:
        made.close()


class _UnixConnection(HTTPConnection):
    """HTTP over a Unix socket (`--uds`)."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=COMPLETION)
        self._path = path

    def connect(self) -> None:
        """Connect to the path."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(COMPLETION)
        self.sock.connect(self._path)


class Health:
    """Answers `live` and `ready`. One completion at a time: askers share it."""

    def __init__(
        self, rank: int, port: int, alive: Callable[[str], str], complete: Check | None
    ) -> None:
        self._name = f"\0{PREFIX}{port}/{rank}/{secrets.token_hex(4)}"
        self._alive, self._complete = alive, complete
        self._asked: asyncio.Future[str] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.AbstractServer | None = None
        self._threads = ThreadPoolExecutor(1)  # its own: not waited for at the end

    async def open(self) -> str:
        """Listen; why that is not possible, or nothing."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(self._name)
        except OSError as error:
            listening.close()
            return f"`ready` and `live` cannot ask this launcher: {error.strerror}"
        self._server = await asyncio.start_unix_server(self._accept, sock=listening, limit=256)
        return ""

    def close(self) -> None:
        """Take no more questions."""
        if self._server:
            self._server.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= _ASKERS or not _is_trusted(writer.get_extra_info("socket")):
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await asyncio.wait_for(reader.readline(), 2.0)
            why = await self._answer(line.decode("ascii", "replace").strip())
            writer.write(json.dumps({"why": why}).encode() + b"\n")
            await asyncio.wait_for(writer.drain(), 1.0)
        except (OSError, ValueError, asyncio.TimeoutError):
            pass  # the asker is gone, or asks nothing
        finally:
            writer.close()

    async def _answer(self, asked: str) -> str:
        why = self._alive(asked)
        if why or asked != "ready" or self._complete is None:
            return why
        if self._asked is None or self._asked.done():
            loop = asyncio.get_running_loop()
            self._asked = loop.run_in_executor(self._threads, self._complete)
        try:
            return await asyncio.wait_for(asyncio.shield(self._asked), COMPLETION)
        except asyncio.TimeoutError:
            return f"no completion of one token within {COMPLETION:.0f} s"


def ask(what: str, rank: int | None, port: int | None, timeout: float) -> str:
    """Ask the launcher in this network namespace; why it is not well, or nothing."""
    there = _launchers()
    with contextlib.ExitStack() as stack:
        reached: dict[str, socket.socket] = {}
        nearer: dict[str, socket.socket] = {}
        for name in there:
            if _matches(name, rank, port) and (connection := _reach(name)):
                reached[name] = stack.enter_context(connection)
                if _peer(connection)[0]:
                    nearer[name] = connection
        reached = nearer or reached
        if not reached:
            return "no such launcher here, of this user" if there else "no launcher is running here"
        if len(reached) > 1:
            names = ", ".join(reached)
            return f"several launchers here: {names}; choose by --rank and --watch-port"
        (connection,) = reached.values()
        try:
            return _question(connection, what, timeout)
        except (OSError, ValueError) as error:
            return f"the launcher does not answer: {error or type(error).__name__}"


def _question(connection: socket.socket, what: str, timeout: float) -> str:
    connection.settimeout(timeout)
    connection.sendall(what.encode() + b"\n")
    with connection.makefile("rb") as answer:
        said: dict[str, Any] = json.loads(answer.readline(65536))
    return str(said.get("why", "the launcher says nothing"))


def _reach(name: str) -> socket.socket | None:
    """A connection to a launcher; none where it is not of this user, or takes none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)  # one whose queue is full is not waited for
    with contextlib.suppress(OSError):
        connection.connect("\0" + name)
        if _is_trusted(connection):
            return connection
    connection.close()
    return None


def _is_trusted(connection: socket.socket) -> bool:
    """Whether the process at the other end is of the same user."""
    return _peer(connection)[1] == os.geteuid()


def _peer(connection: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end: 0 where it is in another PID namespace."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    process, user, _ = struct.unpack("3i", peer)
    return process, user


def _launchers() -> list[str]:
    """The abstract sockets of launchers, from /proc/net/unix (proc(5)); @ is their zero byte."""
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as stream:
            words = [line.split() for line in stream]
    except OSError:
        return []
    marked = {word[7][1:] for word in words if len(word) == 8 and word[7].startswith("@" + PREFIX)}
    return sorted(marked)


def _matches(name: str, rank: int | None, port: int | None) -> bool:
    its_port, its_rank, _ = f"{name.removeprefix(PREFIX)}//".split("/", 2)
    return str(port or its_port) == its_port and str(its_rank if rank is None else rank) == its_rank

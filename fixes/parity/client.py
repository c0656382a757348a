"""One endpoint over HTTP. Nothing else in this package touches the network."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

import httpx

from fixes.parity.faults import Fault, FaultError, Kind, message
from fixes.parity.sse import Reads
from fixes.parity.words import short

CONNECTING = 10.0  # seconds
RETRIES = 3
LONGEST_WAIT = 30.0  # seconds that a Retry-After may ask for
#: Silences in a row after which an endpoint that accepts connections is taken for gone.
PATIENCE = 3
# Below the 5 s after which uvicorn closes an idle connection: none is reused that is closing.
_KEPT = 2.0
#: An answer may take so many times the longest silence, and a second for each of its tokens.
SILENCES_IN_ALL = 4
LARGEST = 64 << 20  # bytes of one answer: beyond any that was asked for
# What is read is timed as it came: a proxy must not pack it.
_AS_IT_IS = {"Accept-Encoding": "identity"}
Done = TypeVar("Done")


class Endpoint:
    """An OpenAI-compatible server. Use it as an asynchronous context manager.

    ``base`` is its URL with or without ``/v1``; ``stall`` is how many seconds it may stay silent.
    """

    def __init__(self, base: str, key: str = "", stall: float = 300.0) -> None:
        self.url = address(base)
        if key:
            self.url = self.url.copy_with(userinfo=b"")  # it would take the header's place
        self.retried = 0
        self.gone: Fault | None = None
        self._silent, self._last = 0, -1.0
        self._key, self._stall = key, stall
        self._client = httpx.AsyncClient(
            headers={**_AS_IT_IS, **({"Authorization": f"Bearer {key}"} if key else {})},
            timeout=httpx.Timeout(stall, connect=CONNECTING, pool=None),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=_KEPT),
        )

    @property
    def shown(self) -> str:
        """The URL without what may be a secret."""
        return str(self.url.copy_with(userinfo=b"", query=None, fragment=None))

    def told(self, fault: Fault) -> Fault:
        """A fault as it may be shown: servers tell the key that they refuse."""
        what = fault.what.replace(self._key, "***") if self._key else fault.what
        return replace(fault, what=short(what))

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    async def get(self, path: str) -> Any:
        """The document at a path, which is JSON. Raises FaultError."""
        return _document(await self._ask("GET", path, None))

    async def text(self, path: str) -> str:
        """The text at a path. Raises FaultError."""
        return (await self._ask("GET", path, None)).decode("utf-8", "replace")

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """What is answered to a body. Too many requests are tried again. Raises FaultError."""
        return _document(await self._ask("POST", path, body))

    async def stream(self, path: str, body: Mapping[str, Any]) -> Reads:
        """Every read of a streamed answer with its time; nothing is parsed meanwhile.

        Raises FaultError. It is not tried again: a second try would be timed in another moment.
        """
        self._there()
        started = time.perf_counter()
        reads: list[tuple[float, bytes]] = []

        async def read() -> None:
            async with self._answer("POST", path, body) as response:
                if response.status_code != httpx.codes.OK:
                    raise _refusal(response, await _whole(response))
                left = LARGEST
                async for data in _parts(response):
                    reads.append((time.perf_counter(), data))
                    left -= len(data)
                    if left < 0:
                        raise _too_large()

        await self._in_time(read(), body)
        self._silent = 0
        return Reads(started, tuple(reads))

    async def check(self, fault: Fault) -> None:
        """After a fault that may be the last: see whether the endpoint is there at all.

        Requests that stall at the same time are one silence.
        """
        if self.gone:
            return
        now = time.monotonic()
        if fault.kind is Kind.STALLED and now - self._last > 0.2:
            self._silent, self._last = self._silent + 1, now
        try:
            asked = self._client.stream("GET", self._at("/v1/models"), timeout=CONNECTING)
            async with asked:  # that it answers is enough: what it says is not read
                pass
        except httpx.HTTPError as error:
            self.gone = Fault(Kind.GONE, f"does not answer any more ({_said(error)})")
        else:
            if self._silent >= PATIENCE:
                what = f"gave no answer {self._silent} times in a row, though it takes connections"
                self.gone = Fault(Kind.GONE, what)

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        self._there()

        async def read() -> tuple[httpx.Response, bytes]:
            async with self._answer(method, path, body) as response:
                return response, await _whole(response)

        for attempt in range(RETRIES + 1):
            response, data = await self._in_time(read(), body or {})
            if response.status_code not in (429, 503) or attempt == RETRIES:
                break
            self.retried += 1
            await asyncio.sleep(_wait(response, attempt))
        if response.status_code != httpx.codes.OK:
            raise _refusal(response, data)
        if method == "POST":
            self._silent = 0
        return data

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> AsyncIterator[httpx.Response]:
        with self._named():
            async with self._client.stream(method, self._at(path), json=body) as response:
                yield response

    async def _in_time(self, answer: Awaitable[Done], body: Mapping[str, Any]) -> Done:
        """An answer, unless it takes longer than it may: a server that sends a byte now and then is
        never silent.
        """
        most = SILENCES_IN_ALL * self._stall + body.get("max_tokens", 0)
        try:
            return await asyncio.wait_for(answer, most)
        except asyncio.TimeoutError:
            raise FaultError(Kind.STALLED, f"not at its end after {most:g} s") from None

    def _at(self, path: str) -> httpx.URL:
        return self.url.copy_with(path=self.url.path.rstrip("/") + path)

    def _there(self) -> None:
        if self.gone:
            raise FaultError(self.gone.kind, self.gone.what)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """What httpx raises, as a fault."""
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise FaultError(Kind.UNREACHABLE, _said(error)) from None
        except httpx.TimeoutException:
            raise FaultError(Kind.STALLED, f"silent for {self._stall:g} s") from None
        except httpx.TransportError as error:
            raise FaultError(Kind.CUT_SHORT, _said(error)) from None
        except httpx.HTTPError as error:
            raise FaultError(Kind.MALFORMED, _said(error)) from None


def address(base: str) -> httpx.URL:
    """A base URL, with or without ``/v1`` at its end. Raises httpx.InvalidURL or ValueError."""
    url = httpx.URL(base)
    path = url.path.rstrip("/").removesuffix("/v1")
    return url.copy_with(path=path.rstrip("/"), fragment=None)


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _wait(response: httpx.Response, attempt: int) -> float:
    """Seconds until the next try: what the server asks for (RFC 9110, 10.2.3), or more each time.

    A date is not waited for: the clocks may differ.
    """
    try:
        asked = float(response.headers["retry-after"])
    except (KeyError, ValueError):
        asked = float(2**attempt)
    return max(0.0, min(asked, LONGEST_WAIT))


def _parts(response: httpx.Response) -> AsyncIterator[bytes]:
    """What is read of an answer; straight from the socket, unless a proxy has packed it."""
    return (
        response.aiter_bytes() if "content-encoding" in response.headers else response.aiter_raw()
    )


async def _whole(response: httpx.Response) -> bytes:
    """All of an answer. Raises FaultError: malformed, if it is too large to be one."""
    read = bytearray()
    async for data in _parts(response):
        read += data
        if len(read) > LARGEST:
            raise _too_large()
    return bytes(read)


def _too_large() -> FaultError:
    return FaultError(Kind.MALFORMED, f"its answer has more than {LARGEST >> 20} MiB")


def _document(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise FaultError(Kind.MALFORMED, "what it answers is no JSON") from None


def _refusal(response: httpx.Response, data: bytes) -> FaultError:
    """A status that is no answer, with the message in the body, or where it leads."""
    status = response.status_code
    what = f"HTTP {status}"
    if location := response.headers.get("location"):
        what += f", which leads to {location}"
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        said = message(data[:1000].decode("utf-8", "replace"))
    else:
        error = document.get("error", document) if isinstance(document, dict) else document
        said = message(error)
    what += f": {said}" if said else ""
    if status == 429:
        return FaultError(Kind.TOO_MANY_REQUESTS, what)
    return FaultError(Kind.SERVER_ERROR if status >= 500 else Kind.REFUSED, what)

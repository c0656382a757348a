"""One endpoint over HTTP. Nothing else in this package touches the network."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import httpx

from fixes.parity.faults import Fault, FaultError, Kind
from fixes.parity.sse import Reads

CONNECTING = 10.0  # seconds
RETRIES = 3
LONGEST_WAIT = 30.0  # seconds that a Retry-After may ask for
#: Silences in a row after which an endpoint that accepts connections is taken for gone.
PATIENCE = 3
# Below the 5 s after which uvicorn closes an idle connection: none is reused that is closing.
_KEPT = 2.0
# What is read is timed and kept as it came: a proxy must not pack it.
_AS_IT_IS = {"Accept-Encoding": "identity"}


class Endpoint:
    """An OpenAI-compatible server. Use it as an asynchronous context manager.

    ``base`` is its URL with or without ``/v1``; ``stall`` is how many seconds it may stay silent.
    """

    def __init__(self, base: str, key: str = "", stall: float = 300.0) -> None:
        url = httpx.URL(base.rstrip("/").removesuffix("/v1"))
        self.url = url.copy_with(userinfo=b"") if key else url  # it would take the header's place
        self.retried = 0
        self.gone: Fault | None = None
        self._silent, self._last = 0, -1.0
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(stall, connect=CONNECTING, pool=None),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=_KEPT),
        )

    @property
    def shown(self) -> str:
        """The URL without a password."""
        return str(self.url.copy_with(userinfo=b""))

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
        return (await self._ask("GET", path, None)).text

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """What is answered to a body. Too many requests are tried again. Raises FaultError."""
        return _document(await self._ask("POST", path, body))

    async def stream(self, path: str, body: Mapping[str, Any]) -> Reads:
        """Every read of a streamed answer with its time; nothing is parsed meanwhile.

        Raises FaultError. It is not tried again: a second try would be timed in another moment.
        """
        self._there()
        reads: list[tuple[float, bytes]] = []
        with self._named():
            started = time.perf_counter()
            request = self._client.stream("POST", self._at(path), json=body, headers=_AS_IT_IS)
            async with request as response:
                if response.status_code != httpx.codes.OK:
                    await response.aread()
                    raise _refusal(response)
                async for data in response.aiter_raw():
                    reads.append((time.perf_counter(), data))
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
            await self._client.get(self._at("/v1/models"), timeout=CONNECTING)
        except httpx.HTTPError as error:
            self.gone = Fault(Kind.GONE, f"does not answer any more ({_said(error)})")
        else:
            if self._silent >= PATIENCE:
                what = f"gave no answer {self._silent} times in a row, though it takes connections"
                self.gone = Fault(Kind.GONE, what)

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> httpx.Response:
        self._there()
        for attempt in range(RETRIES + 1):
            with self._named():
                response = await self._client.request(method, self._at(path), json=body)
            if response.status_code not in (429, 503) or attempt == RETRIES:
                break
            self.retried += 1
            await asyncio.sleep(_wait(response, attempt))
        if response.status_code != httpx.codes.OK:
            raise _refusal(response)
        if method == "POST":
            self._silent = 0
        return response

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
            limit = self._client.timeout.read
            raise FaultError(Kind.STALLED, f"silent for {limit:g} s") from None
        except httpx.TransportError as error:
            raise FaultError(Kind.CUT_SHORT, _said(error)) from None
        except httpx.HTTPError as error:
            raise FaultError(Kind.MALFORMED, _said(error)) from None


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


def _document(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        raise FaultError(Kind.MALFORMED, "what it answers is no JSON") from None


def _refusal(response: httpx.Response) -> FaultError:
    """A status that is no answer, with the message that vLLM and OpenAI put into the body."""
    status = response.status_code
    try:
        document = response.json()
        said = document.get("error", document)
        said = said.get("message", "") if isinstance(said, dict) else said
    except (ValueError, AttributeError):
        said = response.text
    what = f"HTTP {status}: {json.dumps(str(said)[:200])}" if said else f"HTTP {status}"
    if status == 429:
        return FaultError(Kind.TOO_MANY_REQUESTS, what)
    return FaultError(Kind.SERVER_ERROR if status >= 500 else Kind.REFUSED, what)

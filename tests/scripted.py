"""A server that answers as vLLM's completions API does, on real sockets, and misbehaves as told.

Its model is made up: the likeliest tokens follow from a hash of the last few, so that two servers
with the same model agree in everything. A token is a character.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
import hashlib
import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

START = 1  # the token that every text begins with
OFFSET = 10
CODE = re.compile(r"The access code of the archive in (\w+) is ([\w-]+)\.")
ASKED = re.compile(r"Answer: The access code of the archive in (\w+) is$")
Body = dict[str, Any]
#: What a request comes to: nothing special, a status, or one of `close`, `cut`, `stall`, `die`,
#: `garbage`, `empty`, `short`, `flood`, `trickle`; of a stream `cut`, `short`, `error-event`,
#: `no-done`, `flood`, `trickle` and `packed`.
Script = Callable[[int, str, Body], "str | int | None"]
#: What becomes of a document, of an event too: the path, what was asked, what would be answered.
Alter = Callable[[str, Body, Any], Any]


@dataclass(frozen=True)
class Model:
    """Another ``seed`` is another model. ``scale`` multiplies the log-probabilities; ``jitter`` is
    the largest random change of one; with ``forgets`` no needle is found.

    ``twist`` changes the likeliest token after every so many characters of an answer.
    """

    seed: int = 0
    scale: float = 1.0
    jitter: float = 0.0
    forgets: bool = False
    twist: int = 0
    lead: float = 0.01

    def top(self, ids: list[int]) -> list[tuple[int, float]]:
        """The two likeliest tokens after these, the best first."""
        digest = hashlib.sha256(f"{self.seed} {ids[-4:]}".encode()).digest()
        first, second = 97 + digest[0] % 26, 97 + (digest[0] + 1 + digest[1] % 25) % 26
        best = -0.1 - digest[2] / 500
        told = [(first, best), (second, best - self.lead - digest[3] / 100)]
        shaken = [
            (OFFSET + token, value * self.scale + random.uniform(-self.jitter, self.jitter))
            for token, value in told
        ]
        return sorted(shaken, key=lambda item: -item[1])

    def answer(self, prompt: list[int], count: int) -> list[list[tuple[int, float]]]:
        """The likeliest tokens at each place of an answer; a needle's code where one is asked."""
        text = decode(prompt)
        said = ""
        asked = ASKED.search(text)
        if asked and not self.forgets:
            codes = dict(CODE.findall(text))
            said = f" {codes[asked[1]]}." if asked[1] in codes else ""
        ids = list(prompt)
        tops = []
        for place in range(count):
            top = self.top(ids)
            if place < len(said):
                top = [(OFFSET + ord(said[place]), -0.01), (top[0][0] + 1, -5.0)]
            elif self.twist and place % self.twist == self.twist - 1:
                top = [(token + 26, value) for token, value in top]
            tops.append(top)
            ids.append(top[0][0])
        return tops


def encode(text: str, begins: bool = True) -> list[int]:
    return [START] * begins + [OFFSET + ord(character) for character in text]


def decode(ids: list[int]) -> str:
    return "".join(chr(token - OFFSET) for token in ids if token >= OFFSET)


@functools.lru_cache(1024)
def chunk(count: int, told: bool, so_far: int) -> str:
    """An event with so many tokens; with their ids, and with the usage so far if there is one."""
    tokens = [100] * count
    choice: Body = {"index": 0, "text": decode(tokens), **({"token_ids": tokens} if told else {})}
    usage = {"usage": {"completion_tokens": so_far}} if so_far else {}
    return json.dumps({"choices": [choice], **usage})


@dataclass
class Scripted:
    """One server; what it lacks, and what its script makes it do."""

    model: Model = Model()
    script: Script = lambda number, path, body: None
    alter: Alter | None = None
    context: int = 2048
    name: str = "small"
    version: str = "0.30.0+cpu"
    fingerprint: str = "vllm-0.30.0-abcdef01"
    ids: bool = True
    id_names: bool = True
    prompt_logprobs: bool = True
    echo: bool = True
    tokenizes: bool = True
    usage: str = "continuous"
    salts: bool = True
    a_chunk: int = 1
    rate: float = 0.0
    comments: bool = False
    prefix: str = ""
    metrics: str = ""
    vocabulary: int = 0
    seen: list[tuple[str, Body, dict[str, str]]] = field(default_factory=list)
    #: Tokens per second of each stream, as they were really sent.
    truth: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Scripted:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.prefix}"

    def posted(self, path: str = "/v1/completions") -> list[Body]:
        """The bodies that came to a path."""
        return [body for where, body, _ in self.seen if where == path]

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        start = asyncio.start_server(self._connected, "127.0.0.1", 0)
        self._server = self._loop.run_until_complete(start)
        self.port = self._server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def _stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        self._loop.call_later(0.05, self._loop.stop)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._request(reader, writer):
                    pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        path = head[0].split()[1].removeprefix(self.prefix)
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])
        }
        data = await reader.readexactly(int(headers.get("content-length", 0)))
        body: Body = json.loads(data) if data else {}
        self.seen.append((path, body, headers))
        action = self.script(len(self.seen), path, body)
        if action in ("close", "die"):
            if action == "die":
                self._server.close()
                for task in self._tasks - {asyncio.current_task()}:
                    task.cancel()
            return False
        if action == "stall":
            await asyncio.sleep(60)
            return False
        if isinstance(action, int):
            await self._send(writer, {"error": {"message": "as scripted"}}, action)
        elif action in ("flood", "trickle"):
            await self._without_end(writer, action)
        elif path == "/v1/completions" and body.get("stream"):
            return await self._stream(writer, body, action)
        elif path == "/metrics" and self.metrics:
            await self._send(writer, self.metrics)
        elif action == "garbage":
            await self._send(writer, "<html>not what was asked for</html>")
        else:
            status, document = self._document(path, body, action)
            document = self.alter(path, body, document) if self.alter else document
            await self._send(writer, document, status, cut=action == "cut")
            return action != "cut"
        return True

    async def _send(
        self, writer: asyncio.StreamWriter, document: Any, status: int = 200, cut: bool = False
    ) -> None:
        data = (document if isinstance(document, str) else json.dumps(document)).encode()
        head = f"HTTP/1.1 {status} Said\r\ncontent-length: {len(data)}\r\nretry-after: 0\r\n\r\n"
        writer.write(head.encode() + (data[: len(data) // 2] if cut else data))
        await writer.drain()

    async def _without_end(self, writer: asyncio.StreamWriter, action: str) -> None:
        """More than anyone can hold, or a byte now and then."""
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b" " * (1_000_000 if action == "flood" else 1))
            await writer.drain()
            await asyncio.sleep(0 if action == "flood" else 0.05)

    def _document(self, path: str, body: Body, action: object) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"data": [{"id": self.name, "max_model_len": self.context}]}
        if path == "/version":
            return 200, {"version": self.version}
        if path == "/tokenize" and self.tokenizes:
            ids = self._encode(body["prompt"], body.get("add_special_tokens", True))
            return 200, {"tokens": ids, "count": len(ids)}
        if path == "/v1/completions":
            if body.get("cache_salt") and not self.salts:
                return 400, {"error": {"message": "cache_salt is not known here"}}
            return 200, self._completion(body, action)
        return 404, {"detail": "Not Found"}

    def _encode(self, text: str, begins: bool = True) -> list[int]:
        return [token + self.vocabulary for token in encode(text, begins)]

    def _completion(self, body: Body, action: object) -> Any:
        if action == "empty":
            return {"choices": []}
        prompt = body["prompt"]
        ids = self._encode(prompt) if isinstance(prompt, str) else prompt
        count = body["max_tokens"] // (2 if action == "short" else 1)
        tops = self.model.answer(ids, count)
        tokens = [top[0][0] for top in tops]
        choice: Body = {
            "text": decode(tokens),
            "finish_reason": "abort" if action == "short" else "length",
        }
        if self.ids and body.get("return_token_ids"):
            choice |= {"token_ids": tokens, "prompt_token_ids": ids}
        places = [self._place(ids, place) for place in range(1, len(ids))]
        if body.get("prompt_logprobs") and self.prompt_logprobs:
            told = [{token: {"logprob": value} for token, value in row.items()} for row in places]
            choice["prompt_logprobs"] = [None, *told]
        if body.get("logprobs"):
            echo = body.get("echo") and self.echo
            known = [None, *places] if echo else []
            rows = [*known, *(dict(top) for top in tops)]
            every = [*ids, *tokens] if echo else tokens
            choice["logprobs"] = {
                "tokens": [self._name(token) for token in every],
                "token_logprobs": [
                    row and row[token] for token, row in zip(every, rows, strict=True)
                ],
                "top_logprobs": [
                    row and {self._name(token): value for token, value in row.items()}
                    for row in rows
                ],
            }
        usage = {"prompt_tokens": len(ids), "completion_tokens": count}
        return {"choices": [choice], "usage": usage, "system_fingerprint": self.fingerprint}

    def _place(self, ids: list[int], place: int) -> dict[int, float]:
        """One place of a prompt: the token that is there, and the two likeliest."""
        top = self.model.top(ids[:place])
        rest = hashlib.sha256(f"{self.model.seed} {ids[place - 3 : place + 1]}".encode()).digest()
        return {ids[place]: (-5 - rest[0] / 50) * self.model.scale} | dict(top)

    def _name(self, token: int) -> str:
        return f"token_id:{token}" if self.id_names else decode([token])

    async def _stream(self, writer: asyncio.StreamWriter, body: Body, action: object) -> bool:
        if action == "packed":
            events = [chunk(1, self.ids, number) for number in range(1, body["max_tokens"] + 1)]
            data = gzip.compress(
                "".join(f"data: {one}\n\n" for one in [*events, "[DONE]"]).encode()
            )
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n")
            writer.write(b"content-length: %d\r\n\r\n%s" % (len(data), data))
            await writer.drain()
            return True
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        count = body["max_tokens"] // (2 if action == "short" else 1)
        start = time.perf_counter()
        for first in range(0, count, self.a_chunk):
            if self.rate:
                due = start + first / self.rate
                if (wait := due - time.perf_counter()) > 0:
                    await asyncio.sleep(wait)
            if action == "cut" and first >= count // 2:
                writer.write(b"5\r\nda")
                return False
            held = min(self.a_chunk, count - first)
            told = self.ids and bool(body.get("return_token_ids"))
            so_far = first + held if self.usage == "continuous" else 0
            event = chunk(held, told, so_far)
            if self.alter:
                event = json.dumps(self.alter("/v1/completions", body, json.loads(event)))
            self._event(writer, event)
            if first % 64 == 0:
                await writer.drain()
        seconds = time.perf_counter() - start
        self.truth.append((count - self.a_chunk) / seconds if seconds else 0.0)
        if action == "error-event":
            self._event(writer, json.dumps({"error": {"message": "EngineCore died", "code": 500}}))
        if self.usage:
            self._event(writer, json.dumps({"choices": [], "usage": {"completion_tokens": count}}))
        if action not in ("no-done",):
            self._event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def _event(self, writer: asyncio.StreamWriter, data: str) -> None:
        note = b": still here\r\n\r\n" if self.comments else b""
        line = note + f"data: {data}\n\n".encode()
        writer.write(b"%x\r\n%s\r\n" % (len(line), line))


@contextlib.contextmanager
def servers(*several: Scripted) -> Iterator[tuple[Scripted, ...]]:
    """Several servers that are up."""
    with contextlib.ExitStack() as stack:
        yield tuple(stack.enter_context(one) for one in several)

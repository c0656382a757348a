"""The wire: lines of JSON between two nodes that know the same token.

Each side proves that it knows the token by an HMAC over nonces of both, before anything else
is read from it; every later line carries one over its direction, its number and its bytes.
The token never travels. What is sent is not secret: it is versions and hashes.

Not `multiprocessing.connection`, which has such a challenge: its reads have no deadline, so
that one slow stranger blocks everybody, and before Python 3.12 it signs by MD5.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
import socket
from typing import Any

PROTOCOL = 1
#: The longest line, in bytes; one that has not proved itself gets a short one.
LIMIT = 65536
_STRANGERS_LIMIT = 512
#: Seconds for the whole of an introduction.
INTRODUCTION = 5.0
SHORTEST_TOKEN, LONGEST_TOKEN = 16, 4096
#: tcp(7): a lost packet of a thin stream is sent again at even intervals, for a while.
_TCP_THIN_LINEAR_TIMEOUTS = 16

Message = dict[str, Any]


class WireError(Exception):
    """The other side closed, broke the rules, or is not who it has to be. Says it in words."""


class TokenError(WireError):
    """The other side does not know the token."""


class Channel:
    """A connection whose both sides have proved themselves."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        key: bytes,
        directions: tuple[bytes, bytes],
    ) -> None:
        self._reader, self._writer, self._key = reader, writer, key
        self._out, self._in = directions
        self._sent = self._received = 0
        with contextlib.suppress(OSError):  # a loss is to cost no longer and longer silence
            writer.get_extra_info("socket").setsockopt(
                socket.IPPROTO_TCP, _TCP_THIN_LINEAR_TIMEOUTS, 1
            )

    def send(self, message: Message) -> None:
        """Send a message; what cannot be sent shows where the other side is listened to."""
        body = json.dumps(message).encode()
        proof = _proof(self._key, self._out, b"%d" % self._sent, body)
        self._sent += 1
        if not self._writer.is_closing():
            self._writer.write(proof + b" " + body + b"\n")

    async def receive(self) -> Message:
        """The next message. Raises WireError."""
        line = await _line(self._reader)
        proof, _, body = line.partition(b" ")
        wanted = _proof(self._key, self._in, b"%d" % self._received, body)
        if not hmac.compare_digest(proof, wanted):
            raise WireError("sent a line that is not signed")
        self._received += 1
        return _message(body)

    async def flush(self, seconds: float) -> None:
        """Give what was sent that long to leave."""
        try:
            await asyncio.wait_for(self._writer.drain(), seconds)
        except (OSError, asyncio.TimeoutError):
            return

    def close(self) -> None:
        """Close the connection, after what was written if that can be."""
        self._writer.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()


async def challenge(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes
) -> Channel:
    """The head's side of an introduction. Raises WireError, within INTRODUCTION seconds."""
    return await _within(_challenge(reader, writer, token))


async def introduce(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes
) -> Channel:
    """A worker's side of an introduction. Raises WireError, within INTRODUCTION seconds."""
    return await _within(_introduce(reader, writer, token))


async def _challenge(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes
) -> Channel:
    mine = secrets.token_hex(32)
    _plain(writer, {"vllm-fixes": PROTOCOL, "nonce": mine})
    answer = _message(await _line(reader, _STRANGERS_LIMIT))
    theirs, proof = _text(answer, "nonce"), _text(answer, "proof")
    nonces = f"{mine} {theirs}".encode()
    if not hmac.compare_digest(proof.encode(), _proof(token, b"worker", nonces)):
        _plain(writer, {"refused": "token"})
        raise TokenError("does not know the token")
    _plain(writer, {"proof": _proof(token, b"head", nonces).decode()})
    key = _proof(token, b"key", nonces)
    return Channel(reader, writer, key, (b"down", b"up"))


async def _introduce(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes
) -> Channel:
    asked = _message(await _line(reader, _STRANGERS_LIMIT))
    if asked.get("vllm-fixes") != PROTOCOL:
        raise WireError(f"speaks version {asked.get('vllm-fixes')!r} of this, not {PROTOCOL}")
    mine = secrets.token_hex(32)
    nonces = f"{_text(asked, 'nonce')} {mine}".encode()
    _plain(writer, {"nonce": mine, "proof": _proof(token, b"worker", nonces).decode()})
    answer = _message(await _line(reader, _STRANGERS_LIMIT))
    if answer.get("refused") == "token":
        raise TokenError("does not take this node's token")
    if not hmac.compare_digest(_text(answer, "proof").encode(), _proof(token, b"head", nonces)):
        raise TokenError("does not know the token")
    return Channel(reader, writer, _proof(token, b"key", nonces), (b"up", b"down"))


async def _within(introduction: Any) -> Channel:
    try:
        made: Channel = await asyncio.wait_for(introduction, INTRODUCTION)
    except asyncio.TimeoutError:
        raise WireError(f"did not introduce itself within {INTRODUCTION:.0f} s") from None
    return made


def _proof(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"\0".join(parts), hashlib.sha256).hexdigest().encode()


def _plain(writer: asyncio.StreamWriter, message: Message) -> None:
    writer.write(json.dumps(message).encode() + b"\n")


def _text(message: Message, key: str) -> str:
    """A hexadecimal number of 32 bytes: a nonce or a proof."""
    value = message.get(key)
    if not isinstance(value, str) or len(value) != 64 or not value.isascii():
        raise WireError("is no node of a replica")
    return value


async def _line(reader: asyncio.StreamReader, limit: int = LIMIT) -> bytes:
    try:
        line = await reader.readuntil(b"\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        raise WireError("closed the connection") from None
    except (asyncio.LimitOverrunError, ValueError):
        raise WireError("sent a line that is too long") from None
    except OSError as error:
        raise WireError(f"is not to be heard: {error.strerror}") from None
    if len(line) > limit:
        raise WireError("sent a line that is too long")
    return line[:-1]


def _message(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise WireError("sent what is no message") from None
    if not isinstance(message, dict):
        raise WireError("sent what is no message")
    return message

"""What an engine needs to be running elsewhere: whether it answers, as what it should be.

Dynamo's head registers at etcd; NATS carries its requests or events where it is told so. Its
headless nodes need neither. A Ray cluster that is joined needs its head from every node.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import NamedTuple
from urllib.parse import urlsplit

from fixes.launch.plan import Settings, option

TIMEOUT = 3.0
NATS_PORT, ETCD_PORT = 4222, 2379


class Service(NamedTuple):
    """One that is needed. ``where`` is the variable that names it; ``check`` gives why it
    does not answer, or nothing.
    """

    name: str
    where: str
    hint: str
    check: Callable[[], str]


def needed(made: Settings, is_head: bool, environ: Mapping[str, str]) -> Iterator[Service]:
    """The services that this node needs."""
    if made.engine == "ray" and made.ray_address not in ("", "auto", "local"):
        hint = "is the head of the cluster running, and is this its address?"
        yield Service("Ray", "RAY_ADDRESS", hint, lambda: ray(made.ray_address))
    if made.engine != "dynamo" or not is_head:
        return
    if _chosen(made, environ, "discovery-backend") in ("", "etcd"):
        hint = "set ETCD_ENDPOINTS, or DYN_DISCOVERY_BACKEND to what is used instead"
        points = environ.get("ETCD_ENDPOINTS") or f"http://localhost:{ETCD_PORT}"
        yield Service("etcd", "ETCD_ENDPOINTS", hint, lambda: etcd(points, environ))
    planes = [_chosen(made, environ, f"{plane}-plane") for plane in ("request", "event")]
    if "nats" in planes or environ.get("NATS_SERVER"):  # which it then connects to at once
        server = environ.get("NATS_SERVER") or f"nats://localhost:{NATS_PORT}"
        yield Service("NATS", "NATS_SERVER", "set NATS_SERVER", lambda: nats(server))


def etcd(points: str, environ: Mapping[str, str]) -> str:
    """Why none of etcd's endpoints, separated by commas, is healthy; nothing if one is.

    https://etcd.io/docs/v3.5/op-guide/monitoring/: /health is JSON, and false without a leader.
    """
    scheme = "https" if environ.get("ETCD_AUTH_CA") else "http"

    def ask(place: Place) -> str:
        try:
            health = str(json.loads(_get(place, environ))["health"]).lower()
        except ssl.SSLError:
            raise  # one of them is a ValueError, too
        except (HTTPException, ValueError, LookupError, TypeError):
            return f"answers, but not as etcd does over {place.scheme}"
        return "" if health == "true" else "is not healthy: has it a leader?"

    return _none(points, scheme, ETCD_PORT, ask)


def nats(servers: str) -> str:
    """Why none of the NATS servers, separated by commas, answers; nothing if one does.

    A server speaks first, in clear, with TLS too; one that is set to do TLS before that is
    silent: https://docs.nats.io/reference/reference-protocols/nats-protocol.
    """

    def ask(place: Place) -> str:
        with socket.create_connection((place.host, place.port), TIMEOUT) as connection:
            try:
                greeted = connection.recv(4096).startswith(b"INFO ")
            except TimeoutError:
                greeted = place.scheme == "tls"
        return "" if greeted else "answers, but not as NATS does"

    return _none(servers, "nats", NATS_PORT, ask)


def ray(where: str) -> str:
    """Why a Ray cluster cannot be joined; nothing if its head accepts connections."""
    if "://" in where:
        return f"{where} is for Ray's clients; vLLM joins the cluster itself, by HOST:PORT"

    def ask(place: Place) -> str:
        socket.create_connection((place.host, place.port), TIMEOUT).close()
        return ""

    return _none(where, "ray", 0, ask)


class Place(NamedTuple):
    """Where a service is to be. What else its URL holds may be a password, and is not told."""

    scheme: str
    host: str
    port: int


def _none(places: str, scheme: str, port: int, ask: Callable[[Place], str]) -> str:
    """Why none of the places answers as it should; nothing as soon as one does."""
    failed = []
    for text in places.split(","):
        text = text.strip()
        try:
            parts = urlsplit(text if "://" in text else f"{scheme}://{text}")
            place = Place(parts.scheme, parts.hostname or "", parts.port or port)
        except ValueError:
            place = Place(scheme, "", 0)
        if not place.host or not place.port:
            failed.append("an address that is no HOST:PORT")
            continue
        try:
            why = ask(place)
        except (OSError, UnicodeError) as error:
            why = _told(error)
        if not why:
            return ""
        failed.append(f"{place.host}:{place.port} {why}")
    return "; ".join(failed)


def _told(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"does not answer within {TIMEOUT:.0f} s"
    if isinstance(error, ssl.SSLError):
        return f"does not take our TLS: {error.reason or error}"
    if isinstance(error, FileNotFoundError):
        return "is not asked: a file that ETCD_AUTH_CA or ETCD_AUTH_CLIENT_* names is not there"
    return f"does not answer: {getattr(error, 'strerror', None) or error}"


def _chosen(made: Settings, environ: Mapping[str, str], name: str) -> str:
    """A choice that Dynamo takes as an option or as a variable; empty if it is its default."""
    return option(made.arguments, f"--{name}") or environ.get(
        f"DYN_{name.replace('-', '_').upper()}", ""
    )


def _get(place: Place, environ: Mapping[str, str]) -> bytes:
    if place.scheme == "https":
        context = _context(environ)
        made: HTTPConnection = HTTPSConnection(
            place.host, place.port, timeout=TIMEOUT, context=context
        )
    else:
        made = HTTPConnection(place.host, place.port, timeout=TIMEOUT)
    try:
        made.request("GET", "/health")
        return made.getresponse().read(4096)
    finally:
        made.close()


def _context(environ: Mapping[str, str]) -> ssl.SSLContext:
    """TLS by Dynamo's variables. Whose certificate it is matters where they name a CA."""
    authority = environ.get("ETCD_AUTH_CA")
    context = ssl.create_default_context(cafile=authority or None)
    if not authority:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate := environ.get("ETCD_AUTH_CLIENT_CERT"):
        context.load_cert_chain(certificate, environ.get("ETCD_AUTH_CLIENT_KEY") or None)
    return context

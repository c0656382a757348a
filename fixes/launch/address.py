"""Addresses: names to one literal IP, what is local here, and which interface has it."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import struct
import threading
import time
from collections.abc import Callable

from fixes.errors import ExitCode, FixesError, Problem

_SIOCGIFCONF = 0x8912  # <linux/sockios.h>
_IFREQ = 40  # sizeof(struct ifreq) on 64-bit Linux


def is_literal(text: str) -> bool:
    """Whether it is an IP and no name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def canonical(ip: str) -> str:
    """The one spelling of an address, so that it can be compared."""
    return str(ipaddress.ip_address(ip))


def is_unspecified(ip: str) -> bool:
    """Whether it stands for every address of a host: 0.0.0.0 or ::."""
    return ipaddress.ip_address(ip).is_unspecified


def is_loopback(ip: str) -> bool:
    """Whether an address leads nowhere but to this host."""
    return ipaddress.ip_address(ip).is_loopback


def lookup(name: str) -> list[str]:
    """The addresses of a name now: IPv4 ones if there are any, else IPv6 ones; none if none.

    A headless Service of two address families names one pod twice; vLLM takes one.
    """
    if is_literal(name):
        return [canonical(name)]
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    for family in (socket.AF_INET, socket.AF_INET6):
        ips = {str(entry[4][0]) for entry in found if entry[0] == family}
        if ips:
            return sorted(ips)
    return []


async def lookup_beside(name: str) -> list[str]:
    """`lookup` in a thread that neither the loop's end nor the interpreter's waits for.

    An executor's would be waited for, as long as a name server takes.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def give(found: list[str]) -> None:
        if not answer.done():
            answer.set_result(found)

    def work() -> None:
        found = lookup(name)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(give, found)

    threading.Thread(target=work, daemon=True).start()
    return await answer


def resolve(name: str, deadline: float, waiting: Callable[[str], None], pause: float = 1.0) -> str:
    """The one literal address of a name, waited for until ``deadline`` (time.monotonic).

    The value that was looked at is the value that is given: no second lookup, never an empty
    one. Raises FixesError (NOT_STARTED): none until the deadline, or several.
    """
    told = False

    def wait() -> None:
        nonlocal told
        if not told:
            waiting(f"{name} resolves to no address yet")
        told = True

    while True:
        found = _lookup(name, deadline, wait)
        if len(found) == 1:
            return found[0]
        if len(found) > 1:
            what = f"{name} resolves to {len(found)} addresses: {', '.join(found)}"
            hint = "name the head's own pod, not a Service with several behind it"
            raise FixesError(
                Problem(ExitCode.NOT_STARTED, "several-addresses", what, "head address", hint)
            )
        if time.monotonic() >= deadline:
            what = f"{name} resolves to no address"
            hint = "is the head's pod there, and does its Service publish addresses not ready?"
            raise FixesError(
                Problem(ExitCode.NOT_STARTED, "no-address", what, "head address", hint)
            )
        wait()
        time.sleep(pause)


def _lookup(name: str, deadline: float, slow: Callable[[], None]) -> list[str]:
    """Look a name up in a thread: neither a stop nor the deadline waits for a name server."""
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.extend(lookup(name)), daemon=True)
    thread.start()
    thread.join(2.0)
    if thread.is_alive():
        slow()
        thread.join(min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX))
    return found


def is_local(ip: str) -> bool:
    """Whether this host has the address; the one of all of them (0.0.0.0, ::) is none."""
    if is_unspecified(ip):
        return False
    try:
        with socket.socket(_family(ip), socket.SOCK_STREAM) as probe:
            probe.bind((ip, 0))
    except OSError:
        return False
    return True


def is_free(ip: str, port: int) -> bool:
    """Whether a port can be listened on."""
    try:
        with socket.socket(_family(ip), socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((ip, port))
            probe.listen(1)
    except OSError:
        return False
    return True


def toward(ip: str) -> str:
    """The own address that the way to another one begins at; empty without a way."""
    try:
        with socket.socket(_family(ip), socket.SOCK_DGRAM) as probe:
            probe.connect((ip, 9))  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def interfaces() -> dict[str, list[str]]:
    """Every interface and its addresses."""
    found: dict[str, list[str]] = {name: [] for _, name in socket.if_nameindex()}
    for name, ip in [*_of_ipv4(), *_of_ipv6()]:
        found.setdefault(name, []).append(ip)
    return found


def interface_of(ip: str) -> str:
    """The interface that has an address; empty where none has."""
    return next((name for name, ips in interfaces().items() if ip in ips), "")


def _family(ip: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in ip else socket.AF_INET


def _of_ipv4() -> list[tuple[str, str]]:
    """SIOCGIFCONF of netdevice(7): a label such as eth0:1 is of interface eth0."""
    import array
    import fcntl

    room = array.array("B", bytes(_IFREQ * 256))
    where, _ = room.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        answer = fcntl.ioctl(asked.fileno(), _SIOCGIFCONF, struct.pack("iL", len(room), where))
    (length,) = struct.unpack_from("i", answer)
    entries = [room[at : at + _IFREQ].tobytes() for at in range(0, length, _IFREQ)]
    return [
        (entry[:16].partition(b"\0")[0].decode().partition(":")[0], socket.inet_ntoa(entry[20:24]))
        for entry in entries
    ]


def _of_ipv6() -> list[tuple[str, str]]:
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as stream:
            lines = [line.split() for line in stream]
    except OSError:
        return []
    return [(line[5], str(ipaddress.IPv6Address(bytes.fromhex(line[0])))) for line in lines]

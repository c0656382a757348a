"""How Kubernetes spells things: what its API server takes for a name, a label, a quantity.

From k8s.io/apimachinery: util/validation, and api/resource for quantities.
"""

from __future__ import annotations

import re

_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_DOMAIN = rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*"
_QUALIFIED = r"[A-Za-z0-9](?:[-\w.]{0,61}[A-Za-z0-9])?"
_PREFIX = rf"(?:(?=[^/]{{1,253}}/){_LABEL}(?:\.{_LABEL})*/)"

DNS_1035 = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
DNS_1123 = re.compile(_LABEL)
SUBDOMAIN = re.compile(_DOMAIN)
#: A label's key, and its value.
KEY = re.compile(rf"{_PREFIX}?{_QUALIFIED}", re.ASCII)
VALUE = re.compile(rf"(?:{_QUALIFIED})?", re.ASCII)
#: A variable's name, as shells have it too.
VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
CPU = re.compile(r"[1-9]\d*m?", re.ASCII)
#: HOST:PORT/PATH:TAG@DIGEST, the path in small letters.
IMAGE = re.compile(
    r"(?:[A-Za-z0-9.-]+(?::\d+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::\w[\w.-]{0,127})?"
    r"(?:@[a-z0-9]+:[0-9a-f]{32,})?",
    re.ASCII,
)
#: OWNER/NAME on a hub of models, or NAME.
HUB = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)?", re.ASCII)
#: An option on a command line, and no negative number.
OPTION = re.compile(r"-+[A-Za-z]")
_EXTENDED = re.compile(_PREFIX + _QUALIFIED, re.ASCII)
_NATIVE = re.compile(r"ephemeral-storage|hugepages-[1-9]\d*[KMG]i", re.ASCII)
#: In bytes, and with a unit: a small m is a thousandth, and a bare number hardly what is meant.
_SIZE = re.compile(r"([1-9]\d*)([kMGTP]|[KMGTP]i)", re.ASCII)


def bytes_of(size: str) -> int:
    """A size such as 64Gi in bytes; 0 where it is none."""
    found = _SIZE.fullmatch(size)
    if not found:
        return 0
    unit = found[2]
    step = 1024 if unit.endswith("i") else 1000
    bytes_: int = int(found[1]) * step ** ("kmgtp".index(unit[0].lower()) + 1)
    return bytes_


def resource(name: str, count: str, whole: bool = False) -> bool:
    """Whether a container can ask for so much of a resource; ``whole``: one that is counted.

    Extended resources have a domain in front, and no fractions.
    """
    if _EXTENDED.fullmatch(name) and not name.partition("/")[0].endswith("kubernetes.io"):
        return bool(re.fullmatch(r"[1-9]\d{0,8}", count, re.ASCII))
    return not whole and bool(_NATIVE.fullmatch(name)) and bool(bytes_of(count))

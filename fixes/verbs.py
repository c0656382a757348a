"""The verbs of the command line, as data."""

from __future__ import annotations

from typing import NamedTuple


class Verb(NamedTuple):
    """A verb: its module under fixes/commands, one line of help, and whether it can change
    anything, so that a failure says that it has not.
    """

    module: str
    about: str
    changes: bool


VERBS = {
    "apply": Verb("apply", "put fixes in and verify them (the default verb)", True),
    "status": Verb("status", "say what is in the tree; writes nothing", False),
    "verify": Verb("verify", "prove that fixes are in, up to a level; writes nothing", False),
    "revert": Verb("revert", "take fixes out again, byte for byte", True),
    "overlay": Verb(
        "overlay", "put the fixed files into a folder for PYTHONPATH, the tree unchanged", True
    ),
    "list": Verb("listing", "list the fixes and bundles of a profile", False),
    "show": Verb("show", "show everything known about one fix", False),
    "explain": Verb("explain", "find the fixes for what a server's log shows", False),
    "fit": Verb("fit", "say whether a model fits the cards, on one node or over several", False),
    "launch": Verb("launch", "run one node of a replica: agree, start, watch, end as one", True),
    "ready": Verb("probe", "say whether this node of a running replica can serve", False),
    "live": Verb("probe", "say whether this node of a running replica is well", False),
    "manifest": Verb("manifest", "render a Kubernetes manifest of such replicas", False),
    "diff": Verb("diff", "print what apply would change, as a unified diff", False),
    "wheel": Verb("wheel", "make the fixed wheel of a wheel", True),
    "bundle": Verb("bundle", "pack the tool and profiles into one file that Python runs", True),
    "parity": Verb("parity", "compare the answers and the speed of two servers", False),
    "pin": Verb(
        "pin", "pin a plugin without wheels from trees of its releases (maintainers)", True
    ),
    "lock": Verb("lock", "resolve a profile against the published wheels (maintainers)", True),
    "matrix": Verb("matrix", "try every fix on every published wheel (maintainers)", False),
}
#: Verbs that a bundle leaves out: they make what it holds, or need what it must not.
FROM_A_CHECKOUT = ("bundle", "manifest", "parity", "pin", "lock", "matrix")


def named(arguments: list[str]) -> tuple[str, list[str]]:
    """The verb of a command line and what follows it; without one it is ``apply``."""
    if arguments and arguments[0] in VERBS:
        return arguments[0], arguments[1:]
    return "apply", arguments

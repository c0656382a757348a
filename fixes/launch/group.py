"""The group: which node of a replica this one is, from options and from the environment.

An option beats a variable. Where several orchestrators have left their variables, the first
of PLATFORMS whose variables are all there is taken whole: half of two would be neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter
from typing import NamedTuple

from fixes.errors import ExitCode, FixesError, Problem


class Platform(NamedTuple):
    """Where an orchestrator says rank, number of nodes and the head's address.

    ``head`` is a template over the environment's variables.
    """

    name: str
    rank: str
    nnodes: str
    head: str

    def lacks(self, environ: Mapping[str, str]) -> list[str]:
        """Its variables that are not there, or empty."""
        names = [name for _, name, _, _ in Formatter().parse(self.head) if name]
        return [name for name in (self.rank, self.nnodes, *names) if not environ.get(name)]

    def is_half(self, environ: Mapping[str, str]) -> bool:
        """Whether it has left something, but not all. NNODES alone is a preset."""
        marks = {self.rank, self.nnodes} - {"NNODES"}
        return bool(marks & set(environ) and self.lacks(environ))


#: LeaderWorkerSet v0.9.0 and AIBrix v0.7.0 put these into every container; a Kubeflow
#: PyTorchJob sets PET_*; NODE_RANK and NNODES are what scripts around torchrun take. RANK and
#: WORLD_SIZE count processes there, not nodes, and are not read.
PLATFORMS = (
    Platform("LeaderWorkerSet", "LWS_WORKER_INDEX", "LWS_GROUP_SIZE", "{LWS_LEADER_ADDRESS}"),
    Platform(
        "StormService", "POD_GROUP_INDEX", "POD_GROUP_SIZE", "{PODSET_NAME}-0.{STORM_SERVICE_NAME}"
    ),
    Platform("PyTorchJob", "PET_NODE_RANK", "PET_NNODES", "{MASTER_ADDR}"),
    Platform("torchrun", "NODE_RANK", "NNODES", "{MASTER_ADDR}"),
)


#: Those that give all nodes of a replica one address of the head, and no other replica that.
_UNIQUE = ("LeaderWorkerSet", "StormService")


class Group(NamedTuple):
    """``head`` is the head's address as given, a name or an IP; empty on a head that was told
    none. ``source`` says where rank came from.
    """

    rank: int
    nnodes: int
    head: str
    source: str

    @property
    def replica(self) -> str:
        """What tells this replica from others of its token; empty where nothing does.

        An address that was given by hand may be spelled otherwise on each node.
        """
        return self.head if self.source in _UNIQUE else ""

    @property
    def is_head(self) -> bool:
        """Whether this node serves HTTP."""
        return self.rank == 0


class Asked(NamedTuple):
    """What the command line says; None or empty where it says nothing."""

    head: bool = False
    worker: bool = False
    rank: int | None = None
    nnodes: int | None = None
    head_ip: str = ""


def find(asked: Asked, environ: Mapping[str, str]) -> Group:
    """The group. Raises FixesError (usage) with everything that does not add up."""
    platform = next((one for one in PLATFORMS if not one.lacks(environ)), None)
    wrong: list[str] = []
    if asked.head and asked.worker:
        wrong.append("--head and --worker exclude each other")
    rank, source = asked.rank, "--rank"
    if asked.head:
        rank, source = rank or 0, "--head"
        if rank:
            wrong.append(f"--head is rank 0, not --rank {rank}")
    nnodes = asked.nnodes
    half = next((one for one in PLATFORMS if one.is_half(environ)), None)
    if half and not platform and not asked.worker and (rank is None or nnodes is None):
        lacking = ", ".join(half.lacks(environ))
        wrong.append(f"the environment is half of a {half.name}'s: {lacking} is missing or empty")
    if platform and rank is None and not asked.worker:
        rank, source = _number(environ, platform.rank, wrong), platform.name
    if platform and nnodes is None:
        nnodes = _number(environ, platform.nnodes, wrong)
    if nnodes is None and environ.get("NNODES"):
        nnodes = _number(environ, "NNODES", wrong)
    if nnodes is None and asked.rank is not None and not (asked.head or asked.worker):
        wrong.append("--rank needs --nnodes")
    if nnodes is None:
        nnodes = 2 if asked.head or asked.worker or rank else 1
    if asked.worker:
        source = "--worker"
        if rank is None and nnodes > 2:
            wrong.append(f"--worker needs --rank where there are {nnodes} nodes")
        rank = 1 if rank is None else rank
        if not rank:
            wrong.append("--worker cannot be rank 0")
    if rank is None:
        if nnodes > 1:
            wrong.append("neither --head, --worker, --rank nor the environment says which node")
        rank, source = 0, "one node"
    head = asked.head_ip or (platform.head.format_map(environ) if platform else "")
    if nnodes < 1:
        wrong.append(f"{nnodes} nodes")
    elif not 0 <= rank < nnodes:
        wrong.append(f"rank {rank} of {nnodes} nodes: ranks are 0 to {nnodes - 1}")
    if rank and not head:
        wrong.append("a worker needs the head's address: --head-ip")
    if wrong:
        hint = "`vllm-fixes launch --help` shows the ways to say it"
        raise FixesError(*(Problem(ExitCode.USAGE, "usage", what, hint=hint) for what in wrong))
    return Group(rank, nnodes, head, source)


def _number(environ: Mapping[str, str], name: str, wrong: list[str]) -> int:
    """A variable's whole number; what is none is noted, and counts as 0."""
    try:
        return int(environ[name])
    except ValueError:
        wrong.append(f"{name}={environ[name]} is no whole number")
        return 0

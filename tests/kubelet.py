"""What the kubelet makes of a container: variables, words, and where volumes are."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crd import Document


@dataclass(frozen=True)
class Pod:
    """A node of a group. ``given`` is what its controller sets, in front of all others, and
    ``places`` says where a path of the container lies here.
    """

    spec: Document
    ip: str
    given: Mapping[str, str]
    places: Mapping[str, Path]
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def engine(self) -> Document:
        (found,) = self.spec["containers"]
        return dict(found)

    def environment(self, container: Document) -> dict[str, str]:
        """The variables: the controller's, then the container's."""
        found = dict(self.given)
        for one in container.get("env", ()):
            if "value" in one:
                found[one["name"]] = self.here(self.expanded(one["value"], found))
            elif "fieldRef" in one["valueFrom"]:
                assert one["valueFrom"]["fieldRef"] == {"fieldPath": "status.podIP"}
                found[one["name"]] = self.ip
        return {**self.more, **found}

    def words(self, container: Document) -> list[str]:
        """The command line."""
        known = self.environment(container)
        words = [*container["command"], *container.get("args", ())]
        return [self.here(self.expanded(word, known)) for word in words]

    def probe(self, name: str) -> list[str]:
        """A probe's command line."""
        return [self.here(word) for word in self.engine[name]["exec"]["command"]]

    @staticmethod
    def expanded(text: str, known: Mapping[str, str]) -> str:
        """$(NAME) of what is known; $$ is a dollar (Kubernetes' expansion.go)."""

        def value(found: re.Match[str]) -> str:
            if found[0] == "$$":
                return "$"
            return known.get(found[1], found[0])

        return re.sub(r"\$\$|\$\(([^)]*)\)", value, text)

    def here(self, text: str) -> str:
        """A text with the container's paths as they are on this machine."""
        for path, place in self.places.items():
            text = text.replace(path, str(place))
        return text


def leader_worker_set(documents: Sequence[Document]) -> Document:
    """The set's pod template's spec."""
    (found,) = (one for one in documents if one["kind"] == "LeaderWorkerSet")
    spec: Document = found["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    return spec


def given_by_lws(name: str, size: int, index: int, address: str = "") -> dict[str, str]:
    """The variables of LeaderWorkerSet 0.9."""
    return {
        "LWS_LEADER_ADDRESS": address or f"{name}-0.{name}.default",
        "LWS_GROUP_SIZE": str(size),
        "LWS_WORKER_INDEX": str(index),
    }


def given_by_storm(name: str, size: int, index: int) -> dict[str, str]:
    """The variables of AIBrix 0.7's StormService."""
    return {
        "STORM_SERVICE_NAME": name,
        "ROLESET_NAME": f"{name}-roleset-x",
        "ROLE_NAME": "replica",
        "PODSET_NAME": f"{name}-roleset-x-replica-y",
        "POD_GROUP_INDEX": str(index),
        "POD_GROUP_SIZE": str(size),
    }


def shell() -> str:
    """The container's `sh`."""
    found = shutil.which("sh")
    assert found
    return found

"""The little of kustomize that kubernetes/ uses, and the program itself where it is there."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml
from crd import Document


def build(folder: Path) -> list[Document]:
    """A kustomization's documents: resources, then components, then patches."""
    return add(folder, [])


def add(folder: Path, before: list[Document]) -> list[Document]:
    """The same, or a component's, over documents that are there."""
    given = yaml.safe_load((folder / "kustomization.yaml").read_text("utf-8"))
    assert given.pop("kind") in ("Kustomization", "Component")
    assert given.pop("apiVersion").startswith("kustomize.config.k8s.io/v1")
    found = list(before)
    for name in given.pop("resources", ()):
        path = folder / name
        found += build(path) if path.is_dir() else yaml.safe_load_all(path.read_text("utf-8"))
    for name in given.pop("components", ()):
        found = add(folder / name, found)
    for patch in given.pop("patches", ()):
        fitting = [one for one in found if one["kind"] == patch["target"]["kind"]]
        assert fitting and set(patch) == {"target", "patch"} and set(patch["target"]) == {"kind"}
        for one in fitting:
            name = one["metadata"]["name"]
            one.update(_merged(one, yaml.safe_load(patch["patch"])))
            one["metadata"]["name"] = name
    assert not given, f"{folder}: {sorted(given)}"
    return found


def _merged(value: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386), which is what custom resources get."""
    if not isinstance(patch, dict):
        return patch
    made = copy.deepcopy(value) if isinstance(value, dict) else {}
    for key, each in patch.items():
        made[key] = _merged(made.get(key), each)
    return made


def program() -> list[str]:
    """The command that builds a folder; empty where there is none that knows components."""
    if shutil.which("kustomize"):
        return ["kustomize", "build"]
    if not shutil.which("kubectl"):
        return []
    said = subprocess.run(
        ["kubectl", "version", "--client"], capture_output=True, text=True, timeout=60
    ).stdout
    found = re.search(r"Kustomize Version: v(\d+)", said)
    return ["kubectl", "kustomize"] if found and int(found[1]) >= 4 else []

"""The model: where it lies, and what tells it from another one without reading weights."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fixes.errors import ExitCode, FixesError, Problem

#: What a folder that vLLM can serve holds one of (Hugging Face, Mistral).
CONFIGS = ("config.json", "params.json")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_INDEX = "model.safetensors.index.json"


class Identity(NamedTuple):
    """``config`` is a sha256, of the repository's commit where only that is known; ``weights``
    is one over the names and sizes of the weights' files. Empty: not known on this node.
    """

    name: str
    config: str = ""
    weights: str = ""


def is_path(name: str) -> bool:
    """Whether a model's name means a place on this node, and not a repository."""
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or os.path.exists(name)


def absent(name: str, environ: Mapping[str, str]) -> str:
    """Why a model cannot be loaded here; empty where it can, or where only vLLM can tell."""
    if not is_path(name):
        offline = environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
        if offline and ":" not in name and snapshot(name, "main", environ) is None:
            return (
                f"{name} is not in the cache of models ({_hub(environ)}), and HF_HUB_OFFLINE is set"
            )
        return ""
    path = Path(os.path.expanduser(name))
    if path.is_file() and path.suffix == ".gguf":
        return ""
    if not path.is_dir():
        return f"{name} is not there" if not path.exists() else f"{name} is no folder"
    if not any((path / config).is_file() for config in CONFIGS):
        return f"{name} holds neither {' nor '.join(CONFIGS)}"
    return ""


def identify(name: str, revision: str, environ: Mapping[str, str]) -> Identity:
    """What a model is, by what lies on this node.

    A path may differ between nodes, so its name is its last part; a repository's may not.
    Raises FixesError (NOT_STARTED): a file of it cannot be read, or is a link to nowhere.
    """
    try:
        return _identify(name, revision, environ)
    except OSError as error:
        what = f"{error.filename or name} cannot be read: {error.strerror}"
        hint = "is the whole model on this node?"
        raise FixesError(Problem(ExitCode.NOT_STARTED, "no-model", what, hint=hint)) from None


def _identify(name: str, revision: str, environ: Mapping[str, str]) -> Identity:
    if not is_path(name):
        found = snapshot(name, revision or "main", environ)
        config = hashlib.sha256(found.name.encode()).hexdigest() if found else ""
        return Identity(f"{name}@{revision}" if revision else name, config)
    path = Path(os.path.expanduser(name)).resolve()
    if path.is_file():
        return Identity(path.name, "", _sizes([path]))
    digest = hashlib.sha256()
    for part in (*CONFIGS, _INDEX):
        if (path / part).is_file():
            digest.update(f"{part}\0".encode() + (path / part).read_bytes())
    weights = sorted(one for one in path.iterdir() if one.suffix in _WEIGHTS)
    return Identity(path.name, digest.hexdigest(), _sizes(weights))


def snapshot(name: str, revision: str, environ: Mapping[str, str]) -> Path | None:
    """A repository's folder in the cache of huggingface_hub, where the revision is in it."""
    folder = _hub(environ) / f"models--{name.replace('/', '--')}"
    try:
        commit = (folder / "refs" / revision).read_text("ascii").strip()
    except (OSError, UnicodeError, ValueError):
        commit = revision
    found = folder / "snapshots" / commit
    return found if found.is_dir() else None


def _hub(environ: Mapping[str, str]) -> Path:
    home = environ.get("HF_HOME") or "~/.cache/huggingface"
    return Path(environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()


def _sizes(paths: list[Path]) -> str:
    listing = "\n".join(f"{path.name}\0{path.stat().st_size}" for path in paths)
    return hashlib.sha256(listing.encode()).hexdigest() if paths else ""

"""Scratch: a folder for the sockets of one engine, which goes with the node.

vLLM makes a socket file for every queue between its processes and removes none, not at a clean
stop either: in the temporary folder of a container that is started again they add up.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

#: Where vLLM puts them; the temporary folder where it is not set.
VARIABLE = "VLLM_RPC_BASE_PATH"
#: The longest path of a socket, unix(7), less that of a name: a slash and a UUID.
_LONGEST = 107 - 37


def make(environ: Mapping[str, str]) -> str:
    """A new folder; empty where the operator has named one, or there can be none."""
    import tempfile

    if environ.get(VARIABLE):
        return ""
    try:
        folder = tempfile.mkdtemp(prefix="vllm-fixes-")
    except OSError:  # nothing is writable, and the engine will say what it needs
        return ""
    if len(os.fsencode(folder)) > _LONGEST:
        remove(folder)
        return ""
    return folder


def remove(folder: str) -> None:
    """Remove it, with what is in it."""
    import shutil

    if folder:
        shutil.rmtree(folder, ignore_errors=True)

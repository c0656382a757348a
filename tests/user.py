"""Another user, to whom a place is read-only: a mount namespace, and a UID that nobody has."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

USER = 2000
#: Opens the way to what lies below root's home (an interpreter, a cache) without changing its
#: mode, mounts the folders that are named read-only, and one file over another, and becomes the
#: user.
ENTER = """
user=$1 home=$2 changed=$3 place=$4 count=$5; shift 5
if [ "$home" ]; then
    mount --bind "$home" /mnt
    mount -t tmpfs -o mode=755 tmpfs "$home"
    for name in .cache .pyenv .local; do
        if [ -d "/mnt/$name" ]; then
            mkdir "$home/$name"
            mount --bind "/mnt/$name" "$home/$name"
        fi
    done
    umount /mnt
fi
while [ "$count" -gt 0 ]; do
    mount --bind "$1" "$1"
    mount -o remount,bind,ro "$1"
    shift; count=$((count - 1))
done
[ -z "$changed" ] || mount --bind "$changed" "$place"
exec setpriv --reuid="$user" --regid="$user" --clear-groups "$@"
"""


def missing() -> str:
    """Why nothing can be run so here, or nothing."""
    if os.geteuid():
        return "another user needs root"
    if not (shutil.which("unshare") and shutil.which("setpriv")):
        return "another user needs unshare and setpriv of util-linux"
    done = subprocess.run([*command(), "true"], capture_output=True, text=True)
    return f"no mount namespaces here: {done.stderr.strip()}" if done.returncode else ""


def arguments(*read_only: Path, changed: tuple[Path, Path] | None = None) -> list[str]:
    """A shell command that runs what follows it so, in a mount namespace of its own already.

    ``changed`` is a file, and the one in whose place it is to be.
    """
    home = os.path.expanduser("~")
    hidden = home if os.stat(home).st_mode & 0o005 != 0o005 else ""
    folders = [str(folder) for folder in read_only]
    pair = [str(path) for path in changed or ("", "")]
    return ["sh", "-ec", ENTER, "sh", str(USER), hidden, *pair, str(len(folders)), *folders]


def command(*read_only: Path, checkout: Path | None = None) -> list[str]:
    """What goes in front of a command. ``checkout`` is a folder that it has to reach."""
    assert checkout is None or os.stat(checkout).st_mode & 0o005 == 0o005, checkout
    return ["unshare", "--mount", "--propagation", "private", *arguments(*read_only)]

"""Root filesystems laid out like images of vLLM, and the steps of a Dockerfile in them.

Each is a folder with a Python, a shell and a package, entered by chroot in a mount, network and
process namespace of its own. There is no git, patch, pip or uv, and no network but loopback.

What differs from the images: Python is the one that runs the tests, with its standard library
bound read-only (in a Debian layout dist-packages is added by a .pth file unless it is Debian's own
Python); system libraries and devices are the machine's; steps leave no layers, so a file that one
step changes is copied up by no overlay filesystem; there is no GPU and no vendor's package.
"""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from dockerfile_parse import DockerfileParser
from dockerfile_parse.util import WordSplitter
from release import CHECKOUT

TOOLS = ("sh", "env", "id", "ls")
#: Where the machine keeps what TOOLS, Python and extension modules are linked with.
LIBRARIES = [
    folder
    for folder in (
        f"/usr/lib/{os.uname().machine}-linux-gnu",
        "/usr/lib64",
    )
    if os.path.isdir(folder)
]
ASK = """
import json, os, sys, sysconfig
shared = os.path.join(sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LDLIBRARY"))
print(json.dumps([
    os.path.realpath(getattr(sys, "_base_executable", sys.executable)),
    "python%d.%d" % sys.version_info[:2],
    sysconfig.get_path("stdlib"),
    shared if ".so" in shared else "",
]))
"""
ENTER = """
set -e
root=$1 user=$2 folder=$3; shift 3
ip link set lo up
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
while [ "$1" != -- ]; do
    mount --bind "$1" "$root$2"
    mount -o remount,ro,bind "$root$2"
    shift 2
done
shift
exec chroot --userspec="$user" --groups= "$root" env -i -C "$folder" "$@"
"""


def missing() -> str:
    """Why there can be no such root here, or nothing."""
    if os.geteuid():
        return "chroot and namespaces need root"
    for tool in ("unshare", "chroot", "ip"):
        if not shutil.which(tool):
            return f"{tool} is not there"
    tried = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True, text=True
    )
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else ""


@dataclass(frozen=True)
class Interpreter:
    """A Python of the machine that is lent to images."""

    executable: str
    version: str  # python3.11
    standard: str  # its standard library
    shared: str  # its shared library, if it is linked with one

    @staticmethod
    def of(python: str | Path) -> Interpreter:
        done = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=True)
        return Interpreter(*json.loads(done.stdout))


MINE = Interpreter.of(sys.executable)


@dataclass
class Image:
    """A root filesystem, and the settings that a Dockerfile's steps change."""

    root: Path
    site: Path  # where vLLM is, seen from outside
    folder: str
    user: str = "0"
    env: dict[str, str] = field(default_factory=dict)
    entrypoint: list[str] = field(default_factory=list)
    binds: list[tuple[str, str]] = field(default_factory=list)

    def run(self, *command: str, **options: object) -> subprocess.CompletedProcess[str]:
        """One process in the image, as its user, in its working directory."""
        user = self.user if ":" in self.user else f"{self.user}:0"
        binds = [*self.binds, *((folder, folder) for folder in LIBRARIES)]
        flags = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation", "private"]
        settings = {"HOME": "/root" if self.user == "0" else "/home/vllm", **self.env}
        return subprocess.run(
            [
                *("unshare", *flags, "sh", "-c", ENTER, "sh", self.root, user, self.folder),
                *(word for pair in binds for word in pair),
                *("--", *(f"{name}={value}" for name, value in settings.items()), *command),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=400,
        )

    def shell(self, line: str) -> subprocess.CompletedProcess[str]:
        """One line of shell in the image."""
        return self.run("sh", "-c", line)

    def start(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The container's process, with the arguments that `docker run` would hand on."""
        return self.run(*self.entrypoint, *arguments)

    def inside(self, path: Path) -> str:
        """A path as the image sees it."""
        return f"/{path.relative_to(self.root)}"


class StepError(AssertionError):
    """A RUN that did not end with 0: the build would stop there."""

    def __init__(self, line: str, done: subprocess.CompletedProcess[str]) -> None:
        super().__init__(f"{line}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
        self.done = done


def build(image: Image, dockerfile: Path, context: Path, **arguments: str) -> None:
    """Carry out every step of a Dockerfile. Raises StepError where a build would stop."""
    with dockerfile.open("rb") as stream:
        steps = DockerfileParser(fileobj=stream, env_replace=False).structure
    known: dict[str, str] = {}
    for step in steps:
        name, text = step["instruction"], step["value"]
        words = list(WordSplitter(text, args=known, envs=image.env).split())
        if name == "ARG":
            variable, _, default = words[0].partition("=")
            known[variable] = arguments.get(variable, default or known.get(variable, ""))
        elif name == "ENV":
            image.env.update(word.split("=", 1) for word in words)
        elif name == "WORKDIR":
            image.folder = os.path.join(image.folder, words[0])
            (image.root / image.folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif name == "USER":
            image.user = words[0]
        elif name == "COPY":
            source, target = words
            ignored = _ignored(context)
            # Its owner is root, whoever USER is: so are these tests.
            place = image.root / target.lstrip("/")
            shutil.copytree(context / source, place, ignore=ignored, dirs_exist_ok=True)
        elif name == "RUN":
            settings, image.env = image.env, {**known, **image.env}
            done = image.shell(text)
            image.env = settings
            if done.returncode:
                raise StepError(text, done)
        elif name == "ENTRYPOINT":
            image.entrypoint = json.loads(text)
        else:
            assert name in ("FROM", "COMMENT"), name


def _ignored(context: Path):
    """What .dockerignore leaves out below any folder; its other lines name top folders."""
    lines = (CHECKOUT / ".dockerignore").read_text("utf-8").split()
    names = [line.removeprefix("**/") for line in lines]

    def ignore(folder: str, found: list[str]) -> list[str]:
        return [name for name in found if any(fnmatch.fnmatch(name, one) for one in names)]

    return ignore


def bare(root: Path) -> None:
    """What every image has: a shell, /usr/lib, a user 2000, and no packages."""
    for folder in ("usr/bin", "usr/lib", "dev", "proc", "etc", "root", "opt", "home/vllm", "host"):
        (root / folder).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    for folder in LIBRARIES:
        (root / folder.lstrip("/")).mkdir(parents=True)
    (root / "tmp").mkdir(mode=0o1777)
    (root / "tmp").chmod(0o1777)
    os.chown(root / "home/vllm", 2000, 0)
    users = "root:x:0:0::/root:/bin/sh\nvllm:x:2000:0::/home/vllm:/bin/sh\n"
    (root / "etc/passwd").write_text(users)
    for tool in TOOLS:
        shutil.copy(shutil.which(tool) or "", root / "usr/bin" / tool)


def python(root: Path, prefix: str, lent: Interpreter) -> Path:
    """Put the Python below a prefix; its standard library is bound. Returns its site-packages."""
    place = root / prefix.lstrip("/")
    (place / "bin").mkdir(parents=True, exist_ok=True)
    shutil.copy(lent.executable, place / "bin" / lent.version)
    (place / "bin/python3").symlink_to(lent.version)
    library = place / "lib" / lent.version
    library.mkdir(parents=True, exist_ok=True)
    (root / "host/python").mkdir(parents=True)
    for entry in Path(lent.standard).iterdir():
        if entry.name not in ("site-packages", "dist-packages", "ensurepip", "__pycache__"):
            (library / entry.name).symlink_to(f"/host/python/{entry.name}")
    shared = Path(lent.shared)
    if lent.shared and not lent.shared.startswith("/usr/lib"):
        for name in {shared.name, shared.resolve().name, f"{shared.name}.1.0"}:
            shutil.copy(shared, root / "usr/lib" / name)
    (library / "site-packages").mkdir()
    return library / "site-packages"


def debian(root: Path, folder: str, lent: Interpreter = MINE) -> Image:
    """Packages in /usr/local/lib/python3.x/dist-packages: CUDA, ROCm, and Gaudi on Ubuntu."""
    bare(root)
    packages = root / "usr/local/lib" / lent.version / "dist-packages"
    packages.mkdir(parents=True)
    site = python(root, "/usr", lent)
    (site / "debian.pth").write_text(f"/usr/local/lib/{lent.version}/dist-packages\n")
    return _image(root, packages, folder, "/usr/local/bin:/usr/bin", lent)


def redhat(root: Path, folder: str, lent: Interpreter = MINE) -> Image:
    """Packages in /usr/local/lib/python3.x/site-packages, owned by root; it runs as UID 2000."""
    bare(root)
    site = python(root, "/usr/local", lent)
    image = _image(root, site, folder, "/usr/local/bin:/usr/bin", lent)
    image.user = "2000"
    return image


def virtual(root: Path, folder: str, lent: Interpreter = MINE) -> Image:
    """Packages in a virtual environment, /opt/venv: CPU and XPU."""
    bare(root)
    python(root, "/opt/uv/python", lent)
    made = root / "opt/venv"
    site = made / "lib" / lent.version / "site-packages"
    site.mkdir(parents=True)
    (made / "bin").mkdir()
    (made / "bin/python").symlink_to("/opt/uv/python/bin/python3")
    (made / "bin/python3").symlink_to("python")
    (made / "pyvenv.cfg").write_text("home = /opt/uv/python/bin\n")
    return _image(root, site, folder, "/opt/venv/bin:/usr/bin", lent)


def _image(root: Path, site: Path, folder: str, path: str, lent: Interpreter) -> Image:
    (root / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
    made = Image(root, site, folder, env={"PATH": path, "LD_LIBRARY_PATH": "/usr/lib"})
    made.binds = [(lent.standard, "/host/python")]
    return made

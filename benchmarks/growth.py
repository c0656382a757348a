"""Growth: up to 1,000 fixes with 10,000 hunks over 1,000 files, on a made-up target.

Fix number i changes the ten files from number i on in one place each, so that each file is
changed by ten fixes and has to be composed from all of them.
"""

from __future__ import annotations

import base64
import hashlib
import sys
import tempfile
from pathlib import Path

import timing

sys.path.insert(0, str(timing.CHECKOUT))

from fixes import hunks
from fixes.authoring import lockwriter
from fixes.digest import sha256
from fixes.hunks import Hunk
from fixes.lock import Bundle, FileChange, Fix, Lock, Need, PinnedFile, Probe, Step

SIZES = (125, 250, 500, 1000)
SPREAD = 10
#: CPU per hunk at the largest size, over that at a quarter of it.
BUDGET = 1.5


def content(file: int) -> bytes:
    """A module of forty functions."""
    functions = (
        f"def function_{file}_{number}(value):\n    return value + {number}\n\n\n"
        for number in range(40)
    )
    return "".join(functions).encode()


def hunk(file: int, place: int) -> Hunk:
    """A change to one function of a module."""
    number = place * 4
    head = f"def function_{file}_{number}(value):\n".encode()
    old = head + f"    return value + {number}\n".encode()
    return Hunk(number * 4 + 1, old, head + f"    return value * {number}\n".encode())


def make(size: int, root: Path) -> None:
    """A tree of ``size`` files, and as many fixes for it, with their lock."""
    names = [f"vllm/module_{file:04}.py" for file in range(size)]
    tree = {name: content(file) for file, name in enumerate(names)}
    tree["vllm/__init__.py"] = b""
    changes: dict[int, list[int]] = {file: [] for file in range(size)}
    for fix in range(size):
        for away in range(SPREAD):
            changes[(fix + away) % size].append(fix)
    places = {file: {fix: at for at, fix in enumerate(fixes)} for file, fixes in changes.items()}
    for name, data in tree.items():
        write(root / "tree" / name, data)
    info = root / "tree" / "vllm-0.30.0.dist-info"
    write(info / "METADATA", b"Metadata-Version: 2.1\nName: vllm\nVersion: 0.30.0\n")
    rows = [f"{name},{record_hash(data)},{len(data)}" for name, data in tree.items()]
    rows += [f"{info.name}/METADATA,,", f"{info.name}/RECORD,,"]
    write(info / "RECORD", "\n".join([*rows, ""]).encode())

    authored = {"profiles/v0.30.0.toml": b"# made up\n"}
    fixes = {}
    for number in range(size):
        name = f"fix-{number:04}"
        sources = [f"patches/{name}/{file}" for file in ("fix.toml", "all.patch", "probe.py")]
        authored.update(dict.fromkeys(sources, b"# made up\n"))
        touched = sorted((number + away) % size for away in range(SPREAD))
        step = Step(
            "diff",
            sources[1],
            tuple(
                FileChange("vllm", names[file], (hunk(file, places[file][number]),))
                for file in touched
            ),
        )
        text = "made up"
        fixes[name] = Fix(
            name, text, text, text, text, text, (), (), ("0.30.0",), "", ("vllm",), (), (), text,
            text, False, Need.OFFERED, "", (step,), (), Probe(sources[2], "behaviour", text),
        )  # fmt: skip
    files = {}
    for file, name in enumerate(names):
        pre = sha256(tree[name])
        order = sorted(changes[file])
        ids = tuple(f"fix-{fix:04}" for fix in order)
        data = tree[name]
        for fix in order:
            data = hunks.apply(data, (hunk(file, places[file][fix]),)).data
        files[name] = PinnedFile("vllm", name, {pre: ("made-up",)}, {(pre, ids): sha256(data)})
    for path, data in authored.items():
        write(root / "authored" / path, data)
    lock = Lock(
        "v0.30.0",
        "0.30.0",
        {path: sha256(data) for path, data in authored.items()},
        {"made-up": sha256(b"")},
        files,
        fixes,
        {"all": Bundle("all", "every fix", tuple(fixes))},
        (),
    )
    write(root / "authored" / "profiles" / "v0.30.0.lock.json", lockwriter.dump(lock))


def write(path: Path, data: bytes) -> None:
    """Write a file, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def record_hash(data: bytes) -> str:
    """The hash as RECORD has it."""
    raw = hashlib.sha256(data).digest()
    return "sha256=" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def main() -> None:
    """Measure apply, apply again and revert at each size: the best of three each."""
    print(f"Growth ({timing.machine()})")
    per_hunk = {}
    for size in SIZES:
        with tempfile.TemporaryDirectory() as scratch:
            make(size, Path(scratch))
            where = ("--tree", f"{scratch}/tree", "--profiles", f"{scratch}/authored", "--quiet")
            apply = [sys.executable, timing.APPLY_ALL, *where, "all"]
            revert = [sys.executable, timing.APPLY_ALL, "revert", *where, "--all"]
            rounds = [[timing.run(one) for one in (apply, apply, revert)] for _ in range(3)]
        count = size * SPREAD
        print(f"  {size:5} fixes, {count:6} hunks, {size:5} files:", end="")
        for label, costs in zip(
            ("apply", "again", "revert"), zip(*rounds, strict=True), strict=True
        ):
            best = min(cost.cpu for cost in costs)
            per_hunk[size, label] = best / count
            memory = max(cost.memory for cost in costs)
            print(f"  {label} {best:5.2f} s CPU, {memory:4.0f} MiB", end="")
        print()
    ratio = per_hunk[SIZES[-1], "apply"] / per_hunk[SIZES[-1] // 4, "apply"]
    verdict = "within" if ratio <= BUDGET else "OVER"
    print(f"  CPU per hunk, {SIZES[-1]} fixes to {SIZES[-1] // 4}: {ratio:.2f},", end="")
    print(f" {verdict} the budget of {BUDGET:.2f} (linear is 1)")


if __name__ == "__main__":
    main()

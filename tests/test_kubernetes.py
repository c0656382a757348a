"""The manifests in kubernetes/: as rendered, as the schemas say, and by the rules of groups."""

from __future__ import annotations

import copy
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crd
import group_rules
import kustomize
import pytest
import yaml
from crd import Document
from release import CHECKOUT, launch

HERE = CHECKOUT / "kubernetes"
MANIFESTS = sorted(
    path for path in HERE.glob("manifests/**/*.yaml") if path.name != "kustomization.yaml"
)
#: With pods that the rules are about.
RULED = [path for path in MANIFESTS if path.name != "dynamographdeployment.yaml"]
FOLDERS = sorted(
    path.parent
    for name in ("manifests", "overlays")
    for path in HERE.glob(f"{name}/**/kustomization.yaml")
)
MAIN = HERE / "manifests/vllm-two-node-pipeline.yaml"
STORM = HERE / "manifests/stormservice.yaml"
RAY = HERE / "manifests/rayservice.yaml"
OVERLAY = HERE / "manifests/overlay/vllm-two-node-pipeline.yaml"
#: What a component says is what the verb says with these options.
COMPONENTS = {
    "volcano": ("--gang", "volcano", "--queue", "default"),
    "kueue": ("--gang", "kueue", "--queue", "default"),
    "kai": ("--gang", "kai", "--queue", "default-queue"),
    "scaled": ("--max-replicas", "4"),
    "surge": ("--surge",),
}


def name_of(path: Path) -> str:
    return str(path.relative_to(HERE))


def documents(path: Path) -> list[Document]:
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def command(path: Path) -> list[str]:
    """The command line that a manifest says it was rendered by."""
    first = path.read_text("utf-8").partition("\n")[0]
    program, verb, *words = shlex.split(first.removeprefix("# "))
    assert (program, verb) == ("vllm-fixes", "manifest")
    return words


def render(*words: str) -> str:
    done = launch(sys.executable, "manifest", *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("path", MANIFESTS, ids=name_of)
def test_a_manifest_is_what_its_first_line_renders(path: Path) -> None:
    assert path.read_text("utf-8") == render(*command(path)), "run: sh kubernetes/render.sh"


# By the schemas


@pytest.fixture
def schemas() -> None:
    crd.needed()


@pytest.mark.usefixtures("schemas")
@pytest.mark.parametrize("path", [*MANIFESTS, HERE / "zipapp.yaml"], ids=name_of)
def test_a_manifest_is_as_its_schemas_say(path: Path) -> None:
    for document in documents(path):
        assert crd.problems(document) == []


@pytest.mark.usefixtures("schemas")
@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_kustomization_is_as_its_schemas_say(folder: Path) -> None:
    found = kustomize.build(folder)
    assert found
    for document in found:
        assert crd.problems(document) == []


def change(path: str, value: Any) -> Callable[[Document], None]:
    """A change of what a path leads to; None takes it away."""

    def made(document: Any) -> None:
        words = [word.replace("~1", "/") for word in path.split("/")]  # as in RFC 6901
        *way, last = [int(word) if word.isdigit() else word for word in words]
        for word in way:
            document = document[word]
        if value is None:
            del document[last]
        else:
            document[last] = value

    return made


POD = "spec/leaderWorkerTemplate/workerTemplate/spec"
ENGINE = f"{POD}/containers/0"


@pytest.mark.usefixtures("schemas")
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec/startupPolicy", "LeaderStarted"),
        ("spec/leaderWorkerTemplate/sise", 2),
        ("spec/leaderWorkerTemplate/size", "2"),
        ("metadata/label", {"a": "b"}),
        ("metadata/labels", {"a": 1}),
        (f"{POD}/enableServiceLink", False),
        (f"{POD}/containers/0/livenessProbe/exec/cmd", ["true"]),
        (f"{POD}/volumes/0/emptyDir/size", "1Gi"),
        (f"{POD}/containers/0/securityContext/capabilities/added", []),
    ],
)
def test_the_schemas_refuse_what_is_wrong(path: str, value: Any) -> None:
    document = documents(MAIN)[0]
    change(path, value)(document)
    assert crd.problems(document)


@pytest.mark.usefixtures("schemas")
def test_only_what_is_said_has_no_schema() -> None:
    known = {kind for _, kind in crd._definitions()}
    assert {"LeaderWorkerSet", "StormService", "RayService"} <= known
    for kind in crd.UNKNOWN - known:
        (path,) = [one for one in MANIFESTS if documents(one)[0]["kind"] == kind]
        assert "Checked by no schema" in path.read_text("utf-8")


def test_a_dynamo_graph_has_what_the_operator_reads() -> None:
    """By reading: DynamoGraphDeployment v1alpha1 and multinode of ai-dynamo/dynamo."""
    (graph,) = documents(HERE / "manifests/dynamographdeployment.yaml")
    frontend, worker = graph["spec"]["services"].values()
    assert frontend["componentType"] == "frontend" and worker["componentType"] == "worker"
    container = worker["extraPodSpec"]["mainContainer"]
    words = [*container["command"], *container["args"]]
    assert words[:3] == ["python3", "-m", "dynamo.vllm"]  # the operator takes no shell
    sizes = [
        int(words[words.index(f"--{name}-parallel-size") + 1]) for name in ("tensor", "pipeline")
    ]
    cards = int(worker["resources"]["limits"]["gpu"]) * worker["multinode"]["nodeCount"]
    assert sizes[0] * sizes[1] == cards == 16
    own = {"--nnodes", "--node-rank", "--master-addr", "--headless"}
    assert not own & set(words), "the operator adds these"
    pods = dict(worker["extraPodSpec"], containers=[{"name": "main", **container}])
    del pods["mainContainer"]
    assert crd.problems({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": pods}) == []
    backend = "nvidia.com/vllm-distributed-executor-backend"
    assert graph["metadata"]["annotations"][backend] == "mp"


def test_missing_schemas_are_no_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(crd, "FOLDER", tmp_path / "none")
    monkeypatch.delenv("VLLM_FIXES_CRD_REQUIRED", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no CustomResourceDefinitions in"):
        crd.needed()
    monkeypatch.setenv("VLLM_FIXES_CRD_REQUIRED", "1")
    with pytest.raises(pytest.fail.Exception, match="no CustomResourceDefinitions in"):
        crd.needed()


def test_ci_needs_the_schemas() -> None:
    assert "VLLM_FIXES_CRD_REQUIRED=1" in (CHECKOUT / ".ci/run").read_text("utf-8")


# By the rules


@pytest.mark.parametrize("path", RULED, ids=name_of)
def test_a_manifest_breaks_no_rule(path: Path) -> None:
    assert group_rules.broken(documents(path)) == {}


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_kustomization_breaks_no_rule(folder: Path) -> None:
    assert group_rules.broken(kustomize.build(folder)) == {}


def without(kind: str) -> Callable[[list[Document]], None]:
    def made(found: list[Document]) -> None:
        found[:] = [one for one in found if one["kind"] != kind]

    return made


def on(kind: str, path: str, value: Any, number: int = 0) -> Callable[[list[Document]], None]:
    def made(found: list[Document]) -> None:
        change(path, value)(group_rules.of(found, kind)[number])

    return made


def lws(path: str, value: Any) -> Callable[[list[Document]], None]:
    return on("LeaderWorkerSet", path, value)


def argument(old: str, new: str) -> Callable[[list[Document]], None]:
    def made(found: list[Document]) -> None:
        words = found[0]["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]
        at = next(at for at, word in enumerate(words["args"]) if word.startswith(old))
        words["args"][at] = new

    return made


ROLE = "spec/template/spec/roles/0"
ANNOTATIONS = "metadata/annotations"
TOPOLOGY = "leaderworkerset.sigs.k8s.io/exclusive-topology"
HOST = "kubernetes.io/hostname"
BREAKS = [
    ("the_api_has_a_name_of_its_own", MAIN, on("Service", "metadata/name", "vllm-pp")),
    ("no_service_is_called_vllm", MAIN, on("Service", "metadata/name", "vllm")),
    (
        "the_api_is_the_heads",
        MAIN,
        on("Service", "spec/selector/leaderworkerset.sigs.k8s.io~1worker-index", None),
    ),
    ("the_api_is_the_heads", STORM, on("Service", "spec/selector", {"app": "vllm-pp"})),
    (
        "a_rollout_can_go_on",
        MAIN,
        lws("spec/rolloutStrategy/rollingUpdateConfiguration/maxUnavailable", 0),
    ),
    ("workers_do_not_wait_for_the_head", MAIN, lws("spec/startupPolicy", "LeaderReady")),
    (
        "a_group_is_made_anew_after_its_start",
        MAIN,
        lws("spec/leaderWorkerTemplate/restartPolicy", None),
    ),
    ("pods_can_be_named", MAIN, lws("metadata/name", "a" * 51)),
    ("pods_can_be_named", MAIN, lws("metadata/name", "2nodes")),
    ("pods_can_be_named", STORM, on("StormService", "metadata/name", "a" * 21)),
    ("pods_can_be_named", RAY, on("RayService", "metadata/name", "a" * 48)),
    ("a_group_fits_its_domain", MAIN, lws(ANNOTATIONS, {TOPOLOGY: HOST})),
    ("a_storm_service_makes_groups", STORM, on("StormService", f"{ROLE}/podGroupSize", 1)),
    ("a_storm_service_makes_groups", STORM, on("StormService", f"{ROLE}/stateful", None)),
    (
        "a_storm_service_makes_groups",
        STORM,
        on("StormService", f"{ROLE}/template/spec/restartPolicy", "Never"),
    ),
    (
        "a_storm_service_makes_groups",
        STORM,
        on("StormService", f"{ROLE}/template/metadata/labels/model.aibrix.ai~1name", "m"),
    ),
    ("there_are_no_service_links", MAIN, lws(f"{POD}/enableServiceLinks", None)),
    ("nodes_say_their_own_address", MAIN, lws(f"{ENGINE}/env/0", {"name": "HOST_IP"})),
    ("probes_ask_the_launcher", MAIN, lws(f"{ENGINE}/livenessProbe", None)),
    ("probes_ask_the_launcher", MAIN, lws(f"{ENGINE}/startupProbe", None)),
    ("probes_ask_the_launcher", MAIN, lws(f"{ENGINE}/readinessProbe/timeoutSeconds", None)),
    (
        "probes_ask_the_launcher",
        MAIN,
        lws(f"{ENGINE}/livenessProbe", {"httpGet": {"path": "/health", "port": 8000}}),
    ),
    ("there_is_time_to_start", MAIN, lws(f"{ENGINE}/startupProbe/failureThreshold", 60)),
    ("there_is_time_to_end", MAIN, lws(f"{POD}/terminationGracePeriodSeconds", None)),
    ("there_is_time_to_end", MAIN, argument("--grace", "--grace=60")),
    ("a_failed_start_is_slow", MAIN, argument("--fail-slow", "--fail-slow=0")),
    ("shared_memory_is_sized", MAIN, lws(f"{POD}/volumes/0/emptyDir/medium", None)),
    ("shared_memory_is_sized", MAIN, lws(f"{POD}/volumes/0/emptyDir/sizeLimit", None)),
    ("shared_memory_is_sized", MAIN, lws(f"{POD}/volumes/0/emptyDir/sizeLimit", "400Gi")),
    (
        "shared_memory_is_sized",
        RAY,
        on(
            "RayService",
            "spec/rayClusterConfig/headGroupSpec/template/spec/volumes/0/emptyDir/sizeLimit",
            "64Gi",
        ),
    ),
    ("shared_memory_is_cleared", MAIN, lws(f"{ENGINE}/command/2", 'exec "$@"')),
    ("nodes_are_whole", MAIN, lws(f"{ENGINE}/resources/requests/habana.ai~1gaudi", 4)),
    ("nodes_are_whole", MAIN, lws(f"{ENGINE}/resources/requests/hugepages-2Mi", None)),
    ("nodes_are_whole", MAIN, lws(f"{ENGINE}/resources/limits", {"memory": "409Gi"})),
    ("sizes_fit_the_cards", MAIN, lws("spec/leaderWorkerTemplate/size", 3)),
    ("sizes_fit_the_cards", STORM, on("StormService", f"{ROLE}/podGroupSize", 4)),
    (
        "the_token_is_a_file",
        MAIN,
        lws(f"{ENGINE}/env/1", {"name": "VLLM_FIXES_TOKEN", "value": "secret"}),
    ),
    ("the_token_is_a_file", MAIN, argument("--token-file", "--token-file=/tmp/token")),
    ("the_token_is_a_file", MAIN, lws(f"{POD}/volumes/1/secret/defaultMode", 0o400)),
    ("what_is_mounted_is_there", MAIN, lws(f"{POD}/volumes/1", None)),
    ("a_read_only_root_has_places_to_write", OVERLAY, lws(f"{ENGINE}/volumeMounts/5", None)),
    ("evictions_are_limited", MAIN, without("PodDisruptionBudget")),
    (
        "evictions_are_limited",
        MAIN,
        on("PodDisruptionBudget", "spec/selector/matchLabels", {"app": "other"}),
    ),
    ("evictions_are_limited", STORM, on("PodDisruptionBudget", "spec/maxUnavailable", 1)),
    ("the_network_is_closed", MAIN, without("NetworkPolicy")),
    ("the_network_is_closed", MAIN, on("NetworkPolicy", "spec/ingress/0", {})),
    ("the_network_is_closed", MAIN, on("NetworkPolicy", "spec/egress/1", None)),
    ("the_network_is_closed", RAY, on("NetworkPolicy", "spec/ingress/1/ports/1", None)),
    (
        "scaling_is_by_groups",
        HERE / "overlays/scaled",
        on("HorizontalPodAutoscaler", "spec/scaleTargetRef/kind", "StatefulSet"),
    ),
]


@pytest.mark.parametrize(("rule", "path", "breaking"), BREAKS)
def test_a_rule_finds_what_breaks_it(
    rule: str, path: Path, breaking: Callable[[list[Document]], None]
) -> None:
    found = kustomize.build(path) if path.is_dir() else documents(path)
    found = copy.deepcopy(found)
    breaking(found)
    assert rule in group_rules.broken(found)


def test_every_rule_is_broken_once() -> None:
    assert {rule for rule, _, _ in BREAKS} == set(group_rules.RULES)


# By kustomize


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_says_what_the_verb_says(component: str) -> None:
    found = kustomize.add(HERE / "components" / component, documents(MAIN))
    wanted = list(yaml.safe_load_all(render(*command(MAIN), *COMPONENTS[component])))
    assert key(found) == key(wanted)


def key(found: list[Document]) -> list[tuple[str, str, Document]]:
    """Documents in an order that does not matter."""
    return sorted(
        ((one["kind"], one["metadata"]["name"], one) for one in found), key=lambda one: one[:2]
    )


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_kustomize_builds_the_same(folder: Path) -> None:
    build = kustomize.program()
    if not build:
        pytest.skip("neither kustomize nor a kubectl with kustomize 4 or later")
    done = subprocess.run([*build, folder], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert key(list(yaml.safe_load_all(done.stdout))) == key(kustomize.build(folder))


def test_every_component_is_in_an_overlay() -> None:
    used = {
        Path(name).name
        for path in HERE.glob("overlays/*/kustomization.yaml")
        for name in yaml.safe_load(path.read_text("utf-8"))["components"]
    }
    assert used == set(COMPONENTS) == {path.name for path in (HERE / "components").iterdir()}

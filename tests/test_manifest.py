"""The verb ``manifest``: what it renders, what it refuses, and that its command lines run."""

from __future__ import annotations

import functools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import crd
import group_rules
import kubelet
import pytest
import yaml
from crd import Document
from hypothesis import given
from hypothesis import strategies as st
from kubelet import Pod
from release import CHECKOUT, environ, launch

from fixes import cli
from fixes.manifest import wanted, yamltext

MODEL = ("--model", "/models/m", "--model-claim", "models")


@functools.cache
def render(*words: str) -> list[Document]:
    done = launch(sys.executable, "manifest", *words)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return list(yaml.safe_load_all(done.stdout))


def refused(*words: str) -> str:
    done = launch(sys.executable, "manifest", *words)
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    return done.stderr


# YAML

SCALARS = st.one_of(
    st.text(max_size=30),
    st.text("-:# \n'\"{}[]&*!|>%@`0123456789eExyYnoNtrue.~+_", max_size=12),
    st.sampled_from(["yes", "off", "~", "1e3", "0x1f", "1:30", "2001-01-01", "=", "--", "a: b"]),
    st.integers(-(2**63), 2**63),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none(),
)
KEYS = st.text(min_size=1, max_size=12)
VALUES = st.recursive(
    SCALARS,
    lambda each: st.lists(each, max_size=4) | st.dictionaries(KEYS, each, max_size=4),
    max_leaves=20,
)


def noted(value: Any) -> Any:
    """The same with a comment wherever there can be one."""
    if isinstance(value, dict):
        return {key: yamltext.Note("a\nb: c", noted(each)) for key, each in value.items()}
    if isinstance(value, list):
        return [yamltext.Note("- d", noted(each)) for each in value]
    return value


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=5))
def test_yaml_is_read_back_as_it_was(value: dict[str, Any]) -> None:
    assert yaml.safe_load(yamltext.emit([value])) == value
    with_comments = yamltext.emit([noted(value), {"a": 1}], ["first", ""])
    assert list(yaml.safe_load_all(with_comments)) == [value, {"a": 1}]


def test_yaml_is_as_a_person_writes_it() -> None:
    value: yamltext.Document = {
        "command": ["sh", "-ec", 'rm -rf /dev/shm/*; exec "$@"', "--"],
        "image": "vllm/vllm-openai:v0.30.0",
        "quoted": ["8000", "no", "a: b", "", "1.5"],
        "text": "one:\n  two\n",
        "list": [yamltext.Note("Why.", {"a": yamltext.Note("Of a.", 1), "b": []})],
    }
    assert yamltext.emit([value]) == (
        'command:\n  - sh\n  - -ec\n  - rm -rf /dev/shm/*; exec "$@"\n  - "--"\n'
        "image: vllm/vllm-openai:v0.30.0\n"
        'quoted:\n  - "8000"\n  - "no"\n  - "a: b"\n  - ""\n  - "1.5"\n'
        "text: |\n  one:\n    two\n"
        "list:\n  # Why.\n  # Of a.\n  - a: 1\n    b: []\n"
    )


# What is asked for

VARIANTS: dict[str, tuple[str, ...]] = {
    "three stages": (*MODEL, "-tp", "8", "-pp", "3"),
    "tensor parallel over nodes": (*MODEL, "-tp", "16", "-pp", "1"),
    "four cards a node": (*MODEL, "-tp", "4", "-pp", "4", "--cards", "4"),
    "another resource": (*MODEL, "--resource", "example.com/card", "--memory", "1Ti"),
    "from the hub": ("--model", "a/b", "--hf-secret", "hub", "--cache-claim", "cache"),
    "from the hub, zipapp": ("--model", "a/b", "--fixes", "zipapp", "--platform", "nvidia"),
    "RDMA": (*MODEL, "--platform", "nvidia", "--also", "rdma/ib=1", "--also", "x.y/z=2"),
    "another user": (*MODEL, "--user", "1000", "--platform", "nvidia"),
    "a namespace": (*MODEL, "--namespace", "serving", "--name", "big"),
    "more replicas": (*MODEL, "--replicas", "2", "--max-replicas", "9", "--surge"),
    "a rack": (*MODEL, "--topology", "example.com/rack", "--node-label", "pool=big"),
    "Kueue": (*MODEL, "--gang", "kueue", "--queue", "q"),
    "other times": (*MODEL, "--grace", "120", "--meet", "60", "--startup", "7200"),
    "another port": (*MODEL, "--port", "9000", "--", "--max-model-len", "32768"),
    "StormService, Volcano": (
        *(*MODEL, "--kind", "stormservice", "--gang", "volcano"),
        *("--queue", "q", "--max-replicas", "3", "--fixes", "overlay", "--user", "7"),
    ),
    "Ray": (*MODEL, "--kind", "ray", "--platform", "nvidia", "--replicas", "2"),
    "Dynamo, KAI": (
        *("--model", "a/b", "--kind", "dynamo", "--platform", "nvidia"),
        *("--gang", "kai", "--queue", "q"),
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_rendered_breaks_no_rule(variant: str) -> None:
    found = render(*VARIANTS[variant])
    if found[0]["kind"] not in crd.UNKNOWN:
        assert group_rules.broken(found) == {}


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_rendered_is_as_the_schemas_say(variant: str) -> None:
    crd.needed()
    for document in render(*VARIANTS[variant]):
        assert crd.problems(document) == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_first_line_renders_the_same(variant: str) -> None:
    said = launch(sys.executable, "manifest", *VARIANTS[variant]).stdout
    first = shlex.split(said.partition("\n")[0])
    assert first[:3] == ["#", "vllm-fixes", "manifest"]
    assert launch(sys.executable, "manifest", *first[3:]).stdout == said


def test_every_parameter_is_an_option() -> None:
    parser = cli._Parser()
    cli._command("manifest").add_arguments(parser)
    options = {action.dest for action in parser._actions} - {"help"}
    assert options | {"arguments"} == set(wanted.Wanted.__dataclass_fields__)


WRONG = {
    "no model": (("--kind", "lws"), "--model"),
    "a path without a claim": (("--model", "/models/m"), "a path needs the claim"),
    "a claim without a path": (("--model", "a/b", "--model-claim", "c"), "a claim needs a path"),
    "a path elsewhere": (("--model", "/data/m", "--model-claim", "c"), "is not below /models"),
    "part of a node": ((*MODEL, "-tp", "3"), "6 cards are no whole number of nodes with 8"),
    "one node": ((*MODEL, "-tp", "4"), "8 cards are one node"),
    "a variable that is none": ((*MODEL, "--env", "1A=b"), "1A=b is no NAME=VALUE"),
    "a variable without a value": ((*MODEL, "--env", "A"), "A is no NAME=VALUE"),
    "a variable twice": ((*MODEL, "--env", "A=1", "--env", "A=2"), "A is given twice"),
    "a variable of the manifest": (
        (*MODEL, "--env", "VLLM_HOST_IP=10.0.0.1"),
        "VLLM_HOST_IP is set here already",
    ),
    "a secret in the manifest": ((*MODEL, "--env", "HF_TOKEN=hf_x"), "a secret: --hf-secret"),
    "an API for itself": ((*MODEL, "--", "--host", "127.0.0.1"), "outside the pod would reach"),
    "no card": ((*MODEL, "--cards", "0"), "--cards: is too small"),
    "a long name": ((*MODEL, "--name", "a" * 51), "has 51 characters, 50 at most"),
    "a name for many": (
        (*MODEL, "--name", "a" * 50, "--max-replicas", "10"),
        "has 50 characters, 49 at most",
    ),
    "a name that is none": ((*MODEL, "--name", "2-nodes"), "2-nodes is no DNS label"),
    "one host": ((*MODEL, "--topology", "kubernetes.io/hostname"), "cannot be on one host"),
    "another user's zipapp": ((*MODEL, "--user", "1", "--fixes", "zipapp"), "overlay or image"),
    "Ray's zipapp": (
        (*MODEL, "--kind", "ray", "--platform", "nvidia", "--fixes", "zipapp"),
        "the fixes have to be in the image",
    ),
    "Ray on Gaudi": ((*MODEL, "--kind", "ray"), "--kind ray is not for Gaudi"),
    "no use for it": (
        (*MODEL, "--kind", "ray", "--platform", "nvidia", "--port", "9000", "--user", "1"),
        "--port: is not for --kind ray",
    ),
    "a line of its own": (("--model", "a/b\nkind: Pod"), "cannot be printed"),
    "a queue of nobody": ((*MODEL, "--queue", "q"), "--gang and --queue go together"),
    "a gang that is not written": (
        (*MODEL, "--kind", "stormservice", "--gang", "kueue", "--queue", "q"),
        "there is: volcano",
    ),
    "a release that is none": ((*MODEL, "--release", "0.30.0"), "no release such as v0.30.0"),
    "a size that is none": ((*MODEL, "--memory", "much"), "much is no size such as 64Gi"),
    "less than there are": (
        (*MODEL, "--replicas", "3", "--max-replicas", "2"),
        "is less than --replicas 3",
    ),
    "a count of nothing": ((*MODEL, "--also", "rdma/ib"), "rdma/ib is no RESOURCE=COUNT"),
    "a label that is none": ((*MODEL, "--node-label", "pool"), "pool is no KEY=VALUE"),
    "a label of two slashes": ((*MODEL, "--node-label", "a/b/c=d"), "is no KEY=VALUE"),
    "a label twice": ((*MODEL, "--node-label", "a=b", "--node-label", "a=c"), "a is given twice"),
    "a thousandth of a byte": ((*MODEL, "--memory", "512m"), "512m is no size such as 64Gi"),
    "CPUs by the gigabyte": ((*MODEL, "--cpu", "64Gi"), "64Gi is no number of CPUs"),
    "nothing but shared memory": ((*MODEL, "--shm", "500Gi"), "all of the pod's memory, 409Gi"),
    "cards twice": ((*MODEL, "--also", "habana.ai/gaudi=4"), "is what --cards says"),
    "half a resource": ((*MODEL, "--also", "rdma/ib=500m"), "is no RESOURCE=COUNT"),
    "a resource without a domain": ((*MODEL, "--resource", "gaudi"), "no name of an extended"),
    "a namespace that is none": ((*MODEL, "--namespace", "My Ns"), "no name of a namespace"),
    "a claim that is none": (
        ("--model", "/models/m", "--model-claim", "Models_1"),
        "no name of a PersistentVolumeClaim",
    ),
    "a Secret that is none": ((*MODEL, "--token-secret", "a/b"), "a/b is no name of a Secret"),
    "a queue that is none": ((*MODEL, "--gang", "kueue", "--queue", "Q 1"), "no name of a queue"),
    "a topology that is none": ((*MODEL, "--topology", "a b"), "a b is no name of a label"),
    "an image that is none": ((*MODEL, "--image", "My/Image:v1"), "is no name of an image"),
    "a model that is none": (("--model", "org/my model"), "org/my model is no name on the hub"),
    "a model beside the claim": (
        ("--model", "/models/../etc", "--model-claim", "c"),
        "leads out of /models",
    ),
    "a cache beside a claim": ((*MODEL, "--cache-claim", "c"), "--cache-claim: is for a model on"),
    "a port that is none": ((*MODEL, "--port", "70000"), "--port: is more than 65535"),
    "a port that is taken": ((*MODEL, "--port", "29501"), "of the launchers themselves"),
    "a user that is none": ((*MODEL, "--user", "4294967296"), "--user: is more than 2147483647"),
    "another port behind": ((*MODEL, "--", "--port=9000"), "the API is where --port says"),
    "a size behind": ((*MODEL, "--", "-tp", "4"), "-tp behind --: the launcher sets it"),
    "another model behind": ((*MODEL, "--", "other/model"), "several models"),
    "a release that nobody knows": ((*MODEL, "--release", "v9.9.9"), "there is no profile v9.9.9"),
    "a release without Gaudi's transport": (
        (*MODEL, "--release", "v0.28.0"),
        "v0.28.0 has nothing for gaudi",
    ),
    "a fix that is none": ((*MODEL, "--fix", "nonsense"), "no fix or bundle nonsense"),
    "Dynamo's port": (
        (*MODEL, "--kind", "dynamo", "--platform", "nvidia", "--port", "9000"),
        "--port: is not for --kind dynamo",
    ),
    "a keyword that is none": (
        (*MODEL, "--kind", "ray", "--platform", "nvidia", "--", "-x", "1"),
        "-x behind --: is no keyword of vLLM's engine",
    ),
    "a name for AIBrix": (
        (*MODEL, "--kind", "stormservice", "--name", "a" * 21),
        "has 21 characters, 20 at most",
    ),
    "a name for KubeRay": (
        (*MODEL, "--kind", "ray", "--platform", "nvidia", "--name", "a" * 48),
        "has 48 characters, 47 at most",
    ),
    "a name for Grove": (
        (*MODEL, "--kind", "dynamo", "--platform", "nvidia", "--name", "a" * 22),
        "has 22 characters, 21 at most",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_go_together_is_refused(case: str) -> None:
    words, said = WRONG[case]
    assert said in refused(*words)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    said = refused(*MODEL, "--name", "X", "--memory", "x", "--topology", "kubernetes.io/hostname")
    assert said.count("usage: ") == 3


RIGHT = {
    "registry": ("--image", "registry.example.com:5000/team/vllm_x--y:v1@sha256:" + "0" * 64),
    "one word": ("--image", "vllm"),
    "a plain claim": ("--token-secret", "my.secret"),
    "a label of a domain": ("--node-label", "node.example.com/pool=Big_1", "--node-label", "x="),
    "disk": ("--also", "ephemeral-storage=1Ti", "--also", "hugepages-1Gi=4Gi"),
    "a model in a folder with a space": ("--model", "/models/my model"),
    "a bundle and a fix": ("--fix", "pipeline-parallel", "--fix", "pp-offload"),
    "another release": ("--platform", "nvidia", "--release", "v0.33.0"),
    "the longest name": ("--name", "a" * 50),
}


@pytest.mark.parametrize("case", RIGHT)
def test_what_kubernetes_takes_is_rendered(case: str) -> None:
    assert group_rules.broken(render(*MODEL, *RIGHT[case])) == {}


#: By https://kubernetes.io/docs/concepts/security/pod-security-standards/
SECURITY = [
    ("baseline", ("--platform", "nvidia")),
    ("restricted", ("--platform", "nvidia", "--user", "1000")),
    ("restricted", ("--platform", "nvidia", "--user", "1000", "--fixes", "overlay")),
    ("privileged", ()),
    ("privileged", ("--platform", "nvidia", "--user", "1000", "--also", "rdma/ib=1")),
]


@pytest.mark.parametrize("kind", ["lws", "stormservice"])
@pytest.mark.parametrize(("level", "words"), SECURITY)
def test_pods_meet_the_level_of_pod_security_that_is_documented(
    level: str, words: tuple[str, ...], kind: str
) -> None:
    (template,) = crd.templates(group_rules.workload(render(*MODEL, "--kind", kind, *words)))
    spec = template["spec"]
    containers = [*spec.get("initContainers", ()), *spec["containers"]]
    rights = [one["securityContext"] for one in containers]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    allowed = {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}
    assert {key for volume in spec["volumes"] for key in volume} <= allowed | {"name"}
    added = [right.get("capabilities", {}).get("add", []) for right in rights]
    baseline = not any("privileged" in right for right in rights) and not any(added)
    own = spec.get("securityContext", {})
    restricted = (
        baseline
        and own.get("runAsNonRoot") is True
        and own.get("seccompProfile") == {"type": "RuntimeDefault"}
        and all(right["allowPrivilegeEscalation"] is False for right in rights)
        and all(right.get("capabilities", {}).get("drop") == ["ALL"] for right in rights)
    )
    met = "restricted" if restricted else "baseline" if baseline else "privileged"
    assert met == level


def test_releases_do_not_share_a_config_map() -> None:
    said = [
        launch(sys.executable, "manifest", *MODEL, "--fixes", "zipapp", "--release", release).stdout
        for release in ("v0.26.0", "v0.30.0")
    ]
    for text, release in zip(said, ("v0.26.0", "v0.30.0"), strict=True):
        name = f"vllm-fixes-{release}"
        assert f"create configmap {name} --from-file=vllm-fixes.pyz" in text
        (template,) = crd.templates(group_rules.workload(list(yaml.safe_load_all(text))))
        maps = [one["configMap"] for one in template["spec"]["volumes"] if "configMap" in one]
        assert maps == [{"name": name}]


def test_ray_is_told_options_as_what_they_are() -> None:
    """Nobody parses keywords of an engine: a number as a text would stay one."""
    behind = [
        *("--gpu-memory-utilization", "0.85", "--max-model-len=32768", "-q", "fp8"),
        *("--hf-overrides", '{"a": "b=c", "d": null}', "--no-enable-prefix-caching"),
        *("--allowed-media-domains", "a", "b", "--seed", "-1", "--enable-lora"),
    ]
    found = render(*MODEL, "--kind", "ray", "--platform", "nvidia", "--", *behind)
    config = yaml.safe_load(found[0]["spec"]["serveConfigV2"])
    (model,) = config["applications"][0]["args"]["llm_configs"]
    assert model["engine_kwargs"] == {
        "tensor_parallel_size": 8,
        "pipeline_parallel_size": 2,
        "async_scheduling": False,
        "gpu_memory_utilization": 0.85,
        "max_model_len": 32768,
        "quantization": "fp8",
        "hf_overrides": {"a": "b=c", "d": None},
        "enable_prefix_caching": False,
        "allowed_media_domains": ["a", "b"],
        "seed": -1,
        "enable_lora": True,
    }


def test_the_heading_says_how_claims_have_to_be() -> None:
    said = launch(sys.executable, "manifest", *MODEL).stdout
    assert "#   the claim models, ReadOnlyMany or ReadWriteMany: every node mounts it" in said
    said = launch(sys.executable, "manifest", "--model", "a/b", "--cache-claim", "c").stdout
    assert "#   the claim c, ReadWriteMany: every node mounts it" in said
    said = launch(sys.executable, "manifest", "--model", "a/b", "--hf-secret", "hub").stdout
    assert "#   the Secret hub, whose key `token` is the hub's token" in said


@pytest.mark.parametrize("kind", wanted.KINDS)
def test_variables_are_the_engines_on_every_node(kind: str) -> None:
    """Such as the partition that `fit` proposes, which all nodes must have."""
    words = ("--env", "VLLM_PP_LAYER_PARTITION=41,39", "--env", "A=$(B)=c d")
    text = json.dumps(render(*MODEL, "--kind", kind, "--platform", "nvidia", *words))
    found = text.count('{"name": "VLLM_PP_LAYER_PARTITION", "value": "41,39"}')
    assert found == (2 if kind == "ray" else 1)  # a head, which has its own template, and nodes
    assert text.count('{"name": "A", "value": "$$(B)=c d"}') == found  # as the kubelet reads it


def test_tensor_parallelism_that_leaves_a_node_is_told() -> None:
    said = "# Tensor parallelism leaves the node here"
    crossing = ("-tp", "16", "-pp", "1")
    assert said in launch(sys.executable, "manifest", *MODEL, *crossing).stdout
    assert said not in launch(sys.executable, "manifest", *MODEL).stdout


@pytest.mark.parametrize("kind", ["ray", "dynamo"])
def test_whoever_starts_vllm_it_knows_its_address_and_has_time(kind: str) -> None:
    words = ("--kind", kind, "--platform", "nvidia", "--startup", "5000", "--node-label", "a=b")
    said = json.dumps(render(*MODEL, *words))
    assert '{"name": "VLLM_ENGINE_READY_TIMEOUT_S", "value": "5000"}' in said
    assert '{"name": "VLLM_HOST_IP", "valueFrom"' in said
    assert '{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}' in said
    assert '"nodeSelector": {"a": "b"}' in said


def test_a_frontend_of_dynamo_reads_the_models_tokenizer() -> None:
    (graph,) = render(*MODEL, "--kind", "dynamo", "--platform", "nvidia")
    for service in graph["spec"]["services"].values():
        pods = service["extraPodSpec"]
        assert pods["volumes"][0]["persistentVolumeClaim"]["claimName"] == "models"
        assert pods["mainContainer"]["volumeMounts"][0]["mountPath"] == "/models"


# What the containers run

STARTS = {
    "LeaderWorkerSet": ((), kubelet.given_by_lws),
    "StormService": (("--kind", "stormservice"), kubelet.given_by_storm),
}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("controller", STARTS)
def test_the_command_line_starts_what_it_should(controller: str, rank: int, tmp_path: Path) -> None:
    """As the kubelet would start it, up to `--dry-run`."""
    words, variables = STARTS[controller]
    behind = ("--max-model-len", "32768", "--override", '{"a": "$(HOME) $$"}')
    documents = render(*MODEL, *words, "--", *behind)
    (template,) = crd.templates(group_rules.workload(documents))
    places = {
        "/opt/vllm-fixes": CHECKOUT,
        "/dev/shm": tmp_path / "shm",
        "/run/secrets/vllm-fixes": tmp_path,
    }
    (tmp_path / "shm").mkdir()
    (tmp_path / "shm/left").touch()
    pod = Pod(template["spec"], f"10.0.0.{rank + 1}", variables("vllm-pp", 2, rank), places)
    started = run(pod, "--dry-run", "--json")
    assert not list((tmp_path / "shm").iterdir())  # what a crash has left is gone
    assert (started["source"], started["rank"]) == (controller, rank)
    head, worker = started["nodes"]
    for node in (head, worker):
        (line,) = node["commands"]
        shown = shlex.join(line)
        assert "vllm serve /models/m --tensor-parallel-size 8" in shown
        assert "--pipeline-parallel-size 2 --no-async-scheduling" in shown
        assert "--distributed-executor-backend mp --nnodes 2" in shown
        assert f"--node-rank {node['rank']} --master-addr" in shown
        assert tuple(line[-6:]) == ("--port", "8000", *behind)
        assert ("--headless" in line) == (node["rank"] == 1)
    if rank:
        podset = "vllm-pp-roleset-x-replica-y-0.vllm-pp"
        names = {"LeaderWorkerSet": "vllm-pp-0.vllm-pp.default", "StormService": podset}
        assert f"--master-addr {names[controller]} " in shlex.join(worker["commands"][0])
    assert started["nodes"][rank]["environment"]["VLLM_HOST_IP"] == f"10.0.0.{rank + 1}"


def run(pod: Pod, *options: str) -> dict[str, Any]:
    """What the container's command line gives with more options of the launcher."""
    words = pod.words(pod.engine)
    at = words.index("launch") + 1
    command: Sequence[str] = [*words[:at], *options, *words[at:]]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # `python3` is this one
    environment = {**environ(PATH=path), **pod.environment(pod.engine)}
    done = subprocess.run(
        command, cwd="/", env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found

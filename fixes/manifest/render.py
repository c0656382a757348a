"""The text of a manifest: how it was made, what to do before, what it does not promise."""

from __future__ import annotations

import shlex

from fixes.manifest import allowed, kinds
from fixes.manifest.wanted import Wanted
from fixes.manifest.yamltext import Document, emit

#: What a reader should know of a kind before trusting it.
_ABOUT = {
    "lws": (
        "Needs LeaderWorkerSet 0.9.0 or later. Its restart of a whole group is best effort; the",
        "launchers end together by themselves.",
    ),
    "stormservice": (
        "Limits of AIBrix (v0.7.0): a lost pod is replaced alone, and one template with its probes",
        "serves all nodes. The launchers end together, the containers start again in place and",
        "meet again; `ready` tells head and worker apart. Container restarts have Kubernetes'",
        "back-off, so a replica that failed often waits up to 5 minutes.",
    ),
    "ray": (
        "For an image with Ray and the fixes in it, for NVIDIA: vLLM's wheels bring no Ray, and",
        "Ray on Gaudi is not validated. Ray starts vLLM, so there is no launcher here: nothing",
        "compares the nodes, and nothing but Ray ends them together. The guard (docs/deploying.md)",
        "stops a process whose files are not the fixed ones. The API is the Service of KubeRay,",
        "NAME-serve-svc.",
    ),
    "dynamo": (
        "For an image with Dynamo and the fixes in it (docker/guarded.Dockerfile shows the lines).",
        "The operator starts vLLM, so there is no launcher here: nothing compares the nodes, and",
        "workers have no probes. The fix pp-peer-watch ends the other nodes when one is gone.",
        "Checked by no schema: its CustomResourceDefinition is not among those of the tests.",
    ),
}


def documents(wanted: Wanted) -> list[Document]:
    """The documents, with their comments. Raises FixesError: see ``allowed.check``."""
    allowed.check(wanted)
    made: list[Document] = getattr(kinds, wanted.kind)(wanted)
    return made


def text(wanted: Wanted) -> str:
    """The manifest."""
    made = documents(wanted)
    heading = [f"vllm-fixes manifest {shlex.join(wanted.words())}", ""]
    sizes = f"TP {wanted.tensor_parallel_size} x PP {wanted.pipeline_parallel_size}"
    heading += [
        f"One replica is {wanted.nodes} nodes with {wanted.cards} cards each: {sizes}.",
        *_crossing(wanted),
        *_ABOUT[wanted.kind],
        "No cluster has run it: docs/kubernetes.md says what was checked.",
    ]
    steps = [*_before(wanted)]
    if steps:
        heading += ["", "Before it:", *(f"  {step}" for step in steps)]
    return emit(made, heading)


def _crossing(wanted: Wanted) -> list[str]:
    """What is to be said where the cards of a stage are on several nodes."""
    if wanted.cards % wanted.tensor_parallel_size == 0:
        return []
    return ["Tensor parallelism leaves the node here: without RDMA between the nodes it is slow."]


def _before(wanted: Wanted) -> list[str]:
    """What has to be there."""
    where = ["-n", wanted.namespace] if wanted.namespace else []
    kubectl = shlex.join(["kubectl", *where])
    found = []
    for claim, mode in (
        (wanted.model_claim, "ReadOnlyMany or ReadWriteMany"),
        (wanted.cache_claim, "ReadWriteMany"),
    ):
        if claim:
            found.append(f"the claim {claim}, {mode}: every node mounts it at once")
    if wanted.hf_secret:
        found.append(f"the Secret {wanted.hf_secret}, whose key `token` is the hub's token")
    if wanted.kind in ("lws", "stormservice"):
        token = '--from-literal=token="$(head -c 32 /dev/urandom | base64)"'
        found.append(f"{kubectl} create secret generic {wanted.secret} {token}")
    if wanted.fixes != "image":
        found.append(f"vllm-fixes bundle --profile {wanted.profile} --to vllm-fixes.pyz")
        found.append(f"{kubectl} create configmap {wanted.config_map} --from-file=vllm-fixes.pyz")
    return found

"""The kinds of controllers, each as the documents of one replica."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fixes.launch.options import SHORT
from fixes.manifest import around, formats, pod
from fixes.manifest.wanted import Wanted
from fixes.manifest.yamltext import Document, Note, Value

_LWS = "leaderworkerset.sigs.k8s.io"
_STORM = "stormservice.orchestration.aibrix.ai"


def lws(wanted: Wanted) -> list[Document]:
    """A LeaderWorkerSet, from v0.9.0 on."""
    pods: Document = {f"{_LWS}/name": wanted.name}
    head: Document = {**pods, f"{_LWS}/worker-index": "0"}
    labels: Document = {}
    annotations: Document = {}
    if wanted.topology:
        annotations[f"{_LWS}/exclusive-topology"] = wanted.topology
    if wanted.gang == "volcano":
        annotations["scheduling.volcano.sh/queue-name"] = wanted.queue
    elif wanted.gang == "kueue":
        labels["kueue.x-k8s.io/queue-name"] = wanted.queue
    elif wanted.gang == "kai":
        labels["kai.scheduler/queue"] = wanted.queue
    about = around.metadata(wanted, wanted.name, labels=labels)
    if annotations:
        about["annotations"] = annotations
    update: Document = {"maxSurge": 0, "maxUnavailable": 1}
    text = f"A new replica needs the nodes of an old one: with {wanted.replicas} there is a gap."
    if wanted.replicas > 1:
        text = "One replica after another, on the nodes that it had."
    if wanted.surge:
        update = {"maxSurge": 1, "maxUnavailable": 0}
        text = f"No gap: the new replica comes first, on {wanted.nodes} more whole nodes."
    labelled: Document = {"app.kubernetes.io/instance": wanted.name}
    spec: Document = {
        "replicas": wanted.replicas,
        "startupPolicy": Note(
            "The head is ready only with its workers, so these must not wait for it.",
            "LeaderCreated",
        ),
        "rolloutStrategy": {
            "type": "RollingUpdate",
            "rollingUpdateConfiguration": Note(text, update),
        },
        "leaderWorkerTemplate": {
            "size": wanted.nodes,
            "restartPolicy": Note(
                "A slow image pull on one node does not restart the others. After the start a\n"
                "container that ends takes its group along; the launchers do not rely on it.",
                "RecreateGroupAfterStart",
            ),
            "workerTemplate": Note(
                "Of the leader as well: the nodes of a replica get the same line.",
                pod.template(wanted, labelled),
            ),
        },
    }
    if wanted.max_replicas:
        text = "Applied again, this undoes what the HorizontalPodAutoscaler has set."
        spec["replicas"] = Note(text, wanted.replicas)
    documents: list[Document] = [
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": about,
            "spec": spec,
        },
        around.service(wanted, head),
        around.disruption(wanted, pods),
        *around.network(wanted, pods, head),
    ]
    if wanted.max_replicas:
        documents.append(around.scaling(wanted, "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"))
    return documents


def stormservice(wanted: Wanted) -> list[Document]:
    """An AIBrix StormService whose one role is a pod group."""
    pods: Document = {"app.kubernetes.io/instance": wanted.name}
    head: Document = {**pods, f"{_STORM}/pod-group-index": "0"}
    total = wanted.nodes * wanted.replicas
    roles: Document = {"roles": [_role(wanted, pods)]}
    if wanted.gang == "volcano":
        gang: Document = {"minMember": wanted.nodes, "queue": wanted.queue}
        roles["schedulingStrategy"] = {"volcanoSchedulingStrategy": gang}
    documents: list[Document] = [
        {
            "apiVersion": "orchestration.aibrix.ai/v1alpha1",
            "kind": "StormService",
            "metadata": around.metadata(wanted, wanted.name),
            "spec": {
                "replicas": wanted.replicas,
                "stateful": True,
                "updateStrategy": {"type": "RollingUpdate", "maxSurge": 0, "maxUnavailable": 1},
                "selector": {"matchLabels": pods},
                "template": {"metadata": {"labels": pods}, "spec": roles},
            },
        },
        around.service(wanted, head),
        around.disruption(wanted, pods, total if wanted.replicas == 1 else total - 1),
        *around.network(wanted, pods, head),
    ]
    if wanted.max_replicas:
        documents.append(around.scaling(wanted, "orchestration.aibrix.ai/v1alpha1", "StormService"))
    return documents


def _role(wanted: Wanted, pods: Document) -> Document:
    return {
        "name": "replica",
        "replicas": 1,
        "podGroupSize": wanted.nodes,
        "stateful": True,
        "template": Note(
            "No label model.aibrix.ai/name: the gateway would send requests to every node.",
            pod.template(
                wanted,
                dict(pods),
                restartPolicy=Note(
                    "Only the pod that is lost is made anew. So all launchers end, each\n"
                    "container is started again, and they meet again.",
                    "Always",
                ),
            ),
        ),
    }


def ray(wanted: Wanted) -> list[Document]:
    """A RayService: a head without cards, and the nodes as workers."""
    pods: Document = {"app.kubernetes.io/instance": wanted.name}
    head: Document = {"ray.io/serve": "true", **pods}
    engine: Document = {
        "tensor_parallel_size": wanted.tensor_parallel_size,
        "pipeline_parallel_size": wanted.pipeline_parallel_size,
        "async_scheduling": False,
        **_keywords(wanted.arguments),
    }
    config = _serve(wanted, engine)
    workers: Document = {
        "groupName": "nodes",
        "replicas": wanted.nodes * wanted.replicas,
        "minReplicas": wanted.nodes * wanted.replicas,
        "maxReplicas": wanted.nodes * wanted.replicas,
        "rayStartParams": Note(
            "Else by resources that are called so.", {"num-gpus": str(wanted.cards)}
        ),
        "template": _ray_pod(wanted, pods, "ray-worker", pod.resources(wanted), wanted.shm),
    }
    small: Document = {"cpu": "4", "memory": "32Gi"}
    ports: list[Value] = [
        {"name": "gcs-server", "containerPort": 6379},
        {"name": "dashboard", "containerPort": 8265},
        {"name": "client", "containerPort": 10001},
        {"name": "serve", "containerPort": 8000},
    ]
    sizes: Document = {"limits": small, "requests": dict(small)}
    first: Document = {
        "rayStartParams": {"num-gpus": "0"},
        "template": _ray_pod(wanted, pods, "ray-head", sizes, "8Gi", ports),
    }
    total = wanted.nodes * wanted.replicas + 1
    name: Document = {"app.kubernetes.io/name": "kuberay-operator"}
    source: Document = {"namespaceSelector": {}, "podSelector": {"matchLabels": name}}
    dashboard: Document = {"protocol": "TCP", "port": 8265}
    proxy: Document = {"protocol": "TCP", "port": 8000}
    operator = Note(
        "KubeRay's operator, which sends the configuration, and asks the head's proxy before it\n"
        "gives the head the label ray.io/serve.",
        {"from": [source], "ports": [dashboard, proxy]},
    )
    return [
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayService",
            "metadata": around.metadata(wanted, wanted.name),
            "spec": {
                "upgradeStrategy": Note(
                    f"A change starts a second cluster first: {total - 1} more whole nodes.",
                    {"type": "NewCluster"},
                ),
                "serveConfigV2": config,
                "rayClusterConfig": {"headGroupSpec": first, "workerGroupSpecs": [workers]},
            },
        },
        around.disruption(wanted, pods, total),
        *around.network(wanted, pods, head, operator),
    ]


def _serve(wanted: Wanted, engine: Document) -> str:
    """Ray Serve's own configuration, a text in the manifest."""
    from fixes.manifest.yamltext import emit

    loading: Document = {"model_id": wanted.name, "model_source": wanted.model}
    scale: Document = {"min_replicas": wanted.replicas, "max_replicas": wanted.replicas}
    model: Document = {
        "model_loading_config": loading,
        "deployment_config": {"autoscaling_config": scale},
        "engine_kwargs": engine,
    }
    application: Document = {
        "name": "llm",
        "route_prefix": "/",
        "import_path": "ray.serve.llm:build_openai_app",
        "args": {"llm_configs": [model]},
    }
    return emit([{"applications": [application]}])


def _keywords(arguments: Sequence[str]) -> Document:
    """Options of `vllm serve` as keywords: `--max-model-len 32768`, `--no-enable-x`."""
    found: Document = {}
    rest = list(arguments)
    while rest:
        option, equals, given = rest.pop(0).partition("=")
        values = [given] if equals else []
        while rest and not equals and not formats.OPTION.match(rest[0]):
            values.append(rest.pop(0))
        key = SHORT.get(option, option).removeprefix("--").replace("-", "_")
        if not values:
            found[key.removeprefix("no_")] = not key.startswith("no_")
        else:
            read = [_read(value) for value in values]
            found[key] = read[0] if len(read) == 1 else read
    return found


def _read(text: str) -> Value:
    """A number or JSON as what it is, since nobody parses it later; a text as it stands."""
    try:
        found: Value = json.loads(text, parse_constant=str)
    except ValueError:
        return text
    return text if isinstance(found, str) else found


def _ray_pod(
    wanted: Wanted,
    labels: Document,
    name: str,
    sizes: Document,
    shm: str,
    ports: list[Value] | None = None,
) -> Document:
    stored, mounts, volumes = pod.storage(wanted)
    container: Document = {
        "name": name,
        "image": wanted.image_name,
        "env": [*pod.engine_variables(wanted), *stored],
        "resources": sizes,
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, *mounts],
    }
    if ports:
        container["ports"] = list(ports)
    spec = pod.placement(wanted)
    if ports:
        del spec["tolerations"]
    spec["containers"] = [container]
    spec["volumes"] = [pod.shared_memory(shm), *volumes]
    return {"metadata": {"labels": dict(labels)}, "spec": spec}


def dynamo(wanted: Wanted) -> list[Document]:
    """A DynamoGraphDeployment whose worker has several nodes."""
    annotations: Document = {
        "nvidia.com/vllm-distributed-executor-backend": "mp",
    }
    if wanted.gang:
        annotations[
            {"kai": "nvidia.com/kai-scheduler-queue", "volcano": "nvidia.com/volcano-queue"}[
                wanted.gang
            ]
        ] = wanted.queue
    if wanted.gang == "volcano":
        annotations["nvidia.com/enable-grove"] = Note("By LeaderWorkerSets.", "false")
    about = around.metadata(wanted, wanted.name)
    about["annotations"] = annotations
    stored, mounts, volumes = pod.storage(wanted)
    words: list[Value] = [
        "--model",
        wanted.model,
        "--tensor-parallel-size",
        str(wanted.tensor_parallel_size),
        "--pipeline-parallel-size",
        str(wanted.pipeline_parallel_size),
        "--no-async-scheduling",
        *map(pod.literal, wanted.arguments),
    ]
    container: Document = {
        "image": wanted.image_name,
        "workingDir": "/",
        "command": Note(
            "Word by word, and no shell: the operator adds ranks and addresses to it, and\n"
            "--headless on the workers.",
            ["python3", "-m", "dynamo.vllm"],
        ),
        "args": words,
        "env": [*pod.engine_variables(wanted), *stored],
        "volumeMounts": mounts,
    }
    extra: Document = {
        "enableServiceLinks": False,
        "tolerations": pod.tolerations(wanted),
        **pod.selector(wanted),
        "volumes": volumes,
        "mainContainer": container,
    }
    sizes: Document = {"gpu": str(wanted.cards), "cpu": wanted.cpu, "memory": wanted.memory_size}
    frontend: Document = {
        "image": wanted.image_name,
        "command": ["python3", "-m", "dynamo.frontend"],
        "args": ["--http-port", str(wanted.port)],
        **({"env": stored} if stored else {}),
        "volumeMounts": mounts,
    }
    reads: Document = {
        "volumes": Note("Its tokenizer is the model's.", volumes),
        "mainContainer": frontend,
    }
    worker: Document = {
        "componentType": "worker",
        "replicas": wanted.replicas,
        "multinode": {"nodeCount": wanted.nodes},
        "resources": {"limits": sizes, "requests": dict(sizes)},
        "sharedMemory": {"size": wanted.shm},
        "extraPodSpec": extra,
    }
    graph: Document = {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": about,
        "spec": {
            "backendFramework": "vllm",
            "services": {
                "Frontend": {
                    "componentType": "frontend",
                    "replicas": 1,
                    "extraPodSpec": reads,
                },
                "VllmWorker": worker,
            },
        },
    }
    return [graph]

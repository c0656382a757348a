"""What stands around a replica: who reaches it, who may disturb it, how it grows."""

from __future__ import annotations

from fixes.manifest.wanted import Wanted
from fixes.manifest.yamltext import Document, Note, Value

#: Kubernetes' DNS, and OpenShift's, whose pods listen elsewhere than their Service.
_DNS = (53, 5353)


def metadata(wanted: Wanted, name: str, **more: Value) -> Document:
    """An object's metadata."""
    where: Document = {"namespace": wanted.namespace} if wanted.namespace else {}
    labels: Document = {"app.kubernetes.io/instance": wanted.name}
    given = more.pop("labels", {})
    assert isinstance(given, dict)
    return {"name": name, **where, "labels": {**labels, **given}, **more}


def service(wanted: Wanted, head: Document) -> Document:
    """The API. ``head`` selects rank 0 alone: the others serve no HTTP."""
    name = Note(
        f"Not {wanted.name}: the controller's own headless Service is called so.",
        f"{wanted.name}-api",
    )
    about = metadata(wanted, wanted.name)
    about["name"] = name
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": about,
        "spec": {
            "selector": head,
            "ports": [{"name": "http", "port": wanted.port, "targetPort": "http"}],
        },
    }


def disruption(wanted: Wanted, pods: Document, least: int = 0) -> Document:
    """The budget of evictions. ``least``: how many pods there have to be, where Kubernetes
    cannot tell how many there should be.
    """
    spec: Document = {"selector": {"matchLabels": pods}}
    if least:
        text = "No maxUnavailable: the pods' owner has no scale to count them by."
        if wanted.max_replicas:
            text += "\nSo more replicas than --replicas are not kept from eviction."
        spec["minAvailable"] = Note(text, least)
    else:
        text = "Of any node: one pod gone is a replica gone."
        if wanted.replicas == 1:
            text += " The only one is not to be evicted:\nto drain its nodes, delete its pods."
        spec["maxUnavailable"] = Note(text, 0 if wanted.replicas == 1 else 1)
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(wanted, wanted.name),
        "spec": spec,
    }


def network(wanted: Wanted, pods: Document, head: Document, *also: Value) -> list[Document]:
    """Everything inside the group, the API from outside, and nothing else but ``also``."""
    inside: Document = {"podSelector": {"matchLabels": pods}}
    ports: list[Value] = [
        {"protocol": protocol, "port": port} for port in _DNS for protocol in ("UDP", "TCP")
    ]
    out: list[Value] = [{"to": [inside]}, {"ports": ports}]
    if not wanted.model_claim:
        https: Document = {"ports": [{"protocol": "TCP", "port": 443}]}
        out.append(Note("The hub that the model is loaded from.", https))
    everything = Note(
        "All ports: gloo, NCCL, HCCL and vLLM's queues take any. What they carry is\n"
        "pickled: whoever reaches these ports can run code here.",
        [{"from": [inside]}, *also],
    )
    api: Document = {"ports": [{"protocol": "TCP", "port": wanted.port}]}
    return [
        _policy(wanted, "group", pods, ingress=everything, egress=out),
        _policy(wanted, "api", head, ingress=[api]),
    ]


def _policy(wanted: Wanted, what: str, pods: Document, **rules: Value) -> Document:
    """A NetworkPolicy that closes some pods but for the rules of each direction."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(wanted, f"{wanted.name}-{what}"),
        "spec": {
            "podSelector": {"matchLabels": pods},
            "policyTypes": [direction.capitalize() for direction in rules],
            **rules,
        },
    }


def scaling(wanted: Wanted, version: str, kind: str) -> Document:
    """Whole groups, by the scale subresource."""
    metric: Document = {
        "type": "Pods",
        "pods": {
            "metric": {"name": "vllm_num_requests_waiting"},
            "target": {"type": "AverageValue", "averageValue": "8"},
        },
    }
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(wanted, wanted.name),
        "spec": {
            "scaleTargetRef": {"apiVersion": version, "kind": kind, "name": wanted.name},
            "minReplicas": wanted.replicas,
            "maxReplicas": Note(
                f"Each is {wanted.nodes} whole nodes.", max(wanted.max_replicas, wanted.replicas)
            ),
            "metrics": Note(
                "vllm:num_requests_waiting of the heads, as an adapter for Prometheus names it.",
                [metric],
            ),
            "behavior": {
                "scaleUp": {"stabilizationWindowSeconds": 300},
                "scaleDown": {"stabilizationWindowSeconds": 1800},
            },
        },
    }

"""What no schema says of a replica's manifest: the rules of webhooks, controllers and launch.

Each rule is a function over the documents of one manifest; what it gives is what is wrong.
The rules and what happened without them are in docs/kubernetes.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from crd import Document, templates

LWS = "leaderworkerset.sigs.k8s.io"
STORM = "stormservice.orchestration.aibrix.ai"
RULES: dict[str, Callable[[list[Document]], Iterator[str]]] = {}
KINDS = ("LeaderWorkerSet", "StormService", "RayService")


def rule(check: Callable[[list[Document]], Iterator[str]]) -> Any:
    RULES[check.__name__] = check
    return check


def broken(documents: list[Document]) -> dict[str, list[str]]:
    """The rules that a manifest breaks, and how."""
    found = {name: list(check(documents)) for name, check in RULES.items()}
    return {name: wrong for name, wrong in found.items() if wrong}


def of(documents: list[Document], *kinds: str) -> list[Document]:
    return [one for one in documents if one["kind"] in kinds]


def workload(documents: list[Document]) -> Document:
    (found,) = of(documents, *KINDS)
    return found


def launched(documents: list[Document]) -> list[tuple[Document, Document]]:
    """The pods that run the launcher, and their container."""
    found = []
    for template in templates(workload(documents)):
        for container in template["spec"]["containers"]:
            if "launch" in container.get("args", ()):
                found.append((template["spec"], container))
    return found


def engines(documents: list[Document]) -> list[tuple[Document, Document]]:
    """The pods that have cards, and their container."""
    found = []
    for template in templates(workload(documents)):
        for container in template["spec"]["containers"]:
            if any("/" in name for name in container["resources"]["limits"]):
                found.append((template["spec"], container))
    return found


def said(container: Document, option: str, default: str = "") -> str:
    """The value of the launcher's option."""
    for word in container["args"]:
        if word.startswith(f"{option}="):
            return str(word.partition("=")[2])
    return default


def size(quantity: str) -> float:
    number, unit = re.fullmatch(r"(\d+)([KMGT]i)?", quantity).groups()  # type: ignore[union-attr]
    return int(number) * 1024.0 ** (" KMGT".index(unit[0]) if unit else 0)


# The controllers


@rule
def the_api_has_a_name_of_its_own(documents: list[Document]) -> Iterator[str]:
    for service in of(documents, "Service"):
        if service["metadata"]["name"] == workload(documents)["metadata"]["name"]:
            yield "the controller makes no headless Service where one has its name"


@rule
def no_service_is_called_vllm(documents: list[Document]) -> Iterator[str]:
    for service in of(documents, "Service"):
        if service["metadata"]["name"] == "vllm":
            yield "VLLM_PORT is set in every pod of the namespace"


@rule
def the_api_is_the_heads(documents: list[Document]) -> Iterator[str]:
    index = {"LeaderWorkerSet": f"{LWS}/worker-index", "StormService": f"{STORM}/pod-group-index"}
    for service in of(documents, "Service"):
        label = index[workload(documents)["kind"]]
        if service["spec"]["selector"].get(label) != "0":
            yield f"selects without {label}: the others serve no HTTP"


@rule
def a_rollout_can_go_on(documents: list[Document]) -> Iterator[str]:
    for one in of(documents, "LeaderWorkerSet"):
        strategy = one["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]
        if not strategy.get("maxSurge") and not strategy.get("maxUnavailable", 1):
            yield "maxSurge and maxUnavailable are both 0: the webhook refuses it"


@rule
def workers_do_not_wait_for_the_head(documents: list[Document]) -> Iterator[str]:
    for one in of(documents, "LeaderWorkerSet"):
        if one["spec"].get("startupPolicy", "LeaderCreated") != "LeaderCreated":
            yield "the head is ready only with its workers"


@rule
def a_group_is_made_anew_after_its_start(documents: list[Document]) -> Iterator[str]:
    for one in of(documents, "LeaderWorkerSet"):
        if one["spec"]["leaderWorkerTemplate"].get("restartPolicy") != "RecreateGroupAfterStart":
            yield "a slow image pull restarts the other node's"


@rule
def pods_can_be_named(documents: list[Document]) -> Iterator[str]:
    one = workload(documents)
    name = one["metadata"]["name"]
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        yield f"{name} is no DNS label (RFC 1035)"
    digits = len(str(one["spec"].get("replicas", 1)))
    longest = {"LeaderWorkerSet": 51 - digits, "RayService": 47, "StormService": 20}
    if len(name) > longest[one["kind"]]:
        yield f"{name} is too long"


@rule
def a_group_fits_its_domain(documents: list[Document]) -> Iterator[str]:
    annotations = workload(documents)["metadata"].get("annotations", {})
    for name in ("exclusive-topology", "subgroup-exclusive-topology"):
        if annotations.get(f"{LWS}/{name}") == "kubernetes.io/hostname":
            yield "two whole nodes are never one host"


@rule
def a_storm_service_makes_groups(documents: list[Document]) -> Iterator[str]:
    for one in of(documents, "StormService"):
        for role in one["spec"]["template"]["spec"]["roles"]:
            if role.get("podGroupSize", 1) < 2 or not role.get("stateful"):
                yield "pods have no rank and no name to find the head by"
            if role["template"]["spec"].get("restartPolicy", "Always") != "Always":
                yield "a pod that failed keeps its name, and is not made anew"
            if "model.aibrix.ai/name" in role["template"]["metadata"]["labels"]:
                yield "the gateway sends requests to headless nodes"


# The pods


@rule
def there_are_no_service_links(documents: list[Document]) -> Iterator[str]:
    for template in templates(workload(documents)):
        if template["spec"].get("enableServiceLinks") is not False:
            yield "a Service called vllm sets VLLM_PORT to a URI"


@rule
def nodes_say_their_own_address(documents: list[Document]) -> Iterator[str]:
    for template in templates(workload(documents)):
        for container in template["spec"]["containers"]:
            fields = {
                one["name"]: one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
                for one in container.get("env", ())
            }
            if fields.get("VLLM_HOST_IP") != "status.podIP":
                yield "vLLM's queues bind to a guess"


@rule
def probes_ask_the_launcher(documents: list[Document]) -> Iterator[str]:
    wanted = {"startupProbe": "ready", "livenessProbe": "live", "readinessProbe": "ready"}
    for _, container in launched(documents):
        for name, verb in wanted.items():
            probe = container.get(name)
            if probe is None:
                yield f"no {name}"
            elif probe.get("exec", {}).get("command", [""])[-1] != verb:
                yield f"{name} does not ask `{verb}`"
            elif probe.get("timeoutSeconds", 1) < 6:
                yield f"{name}: the answer takes up to 5 s, and Python's start"


@rule
def there_is_time_to_start(documents: list[Document]) -> Iterator[str]:
    for _, container in launched(documents):
        probe = container.get("startupProbe", {})
        budget = probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3)
        values = {one["name"]: one.get("value", "") for one in container["env"]}
        loading = int(values.get("VLLM_ENGINE_READY_TIMEOUT_S", "600"))
        if budget < int(said(container, "--meet-timeout", "1800")) + loading:
            yield f"{budget} s, and the nodes may wait and load for longer"


@rule
def there_is_time_to_end(documents: list[Document]) -> Iterator[str]:
    for spec, container in launched(documents):
        hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
        before = int(hook[-1]) if hook else 0
        needed = before + int(said(container, "--grace", "20")) + 15
        if spec.get("terminationGracePeriodSeconds", 30) < needed:
            yield f"SIGKILL comes before the {needed} s that the launcher may take"


@rule
def a_failed_start_is_slow(documents: list[Document]) -> Iterator[str]:
    for _, container in launched(documents):
        if int(said(container, "--fail-slow", "0")) < 10:
            yield "LeaderWorkerSet makes a group anew without a pause"


@rule
def shared_memory_is_sized(documents: list[Document]) -> Iterator[str]:
    specs = [template["spec"] for template in templates(workload(documents))]
    for spec, container in [(each, one) for each in specs for one in each["containers"]]:
        names = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
        volumes = {one["name"]: one.get("emptyDir") or {} for one in spec["volumes"]}
        volume = volumes.get(names.get("/dev/shm", ""), {})
        if volume.get("medium") != "Memory" or "sizeLimit" not in volume:
            yield "/dev/shm is 64 MiB, or without a limit"
        elif size(volume["sizeLimit"]) * 2 > size(container["resources"]["limits"]["memory"]):
            yield "/dev/shm may take most of the pod's memory"


@rule
def shared_memory_is_cleared(documents: list[Document]) -> Iterator[str]:
    for _, container in launched(documents):
        script = " ".join(container["command"])
        if not re.search(r"rm -rf /dev/shm/\*.*exec", script):
            yield "what a container that crashed left there is never freed"


@rule
def nodes_are_whole(documents: list[Document]) -> Iterator[str]:
    found = engines(documents)
    if not found:
        yield "no container has cards"
    for _, container in found:
        limits, requests = (container["resources"].get(key, {}) for key in ("limits", "requests"))
        for name in {*limits, *requests}:
            special = "/" in name or name.startswith("hugepages-")
            if (special or name == "memory") and limits.get(name) != requests.get(name):
                yield f"{name}: requests differ from limits"
        if "habana.ai/gaudi" in limits and "hugepages-2Mi" not in limits:
            yield "Habana's driver wants huge pages"


@rule
def sizes_fit_the_cards(documents: list[Document]) -> Iterator[str]:
    one = workload(documents)
    for spec, container in launched(documents):
        (tolerated,) = spec["tolerations"]
        count = int(said(container, "--tensor-parallel-size", "1"))
        count *= int(said(container, "--pipeline-parallel-size", "1"))
        cards = container["resources"]["limits"].get(tolerated["key"], 0)
        if one["kind"] == "LeaderWorkerSet":
            nodes = one["spec"]["leaderWorkerTemplate"]["size"]
        else:
            nodes = one["spec"]["template"]["spec"]["roles"][0]["podGroupSize"]
        if cards * nodes != count:
            yield f"{nodes} nodes with {cards} cards for {count} ranks"


@rule
def the_token_is_a_file(documents: list[Document]) -> Iterator[str]:
    for spec, container in launched(documents):
        if any(one["name"] == "VLLM_FIXES_TOKEN" for one in container["env"]):
            yield "a variable is handed to every process and shown by `describe`"
        file = said(container, "--token-file")
        secrets = {one["name"] for one in spec["volumes"] if "secret" in one}
        mounts = [one for one in container["volumeMounts"] if one["name"] in secrets]
        if not any(file.startswith(f"{one['mountPath']}/") for one in mounts):
            yield f"{file or 'no --token-file'} is in no Secret"
        readable = 0o040 if "fsGroup" in spec.get("securityContext", {}) else 0o004
        for one in spec["volumes"]:
            if not one.get("secret", {}).get("defaultMode", 0o644) & readable:
                yield "the file is root's, and the image's user may be another"


@rule
def what_is_mounted_is_there(documents: list[Document]) -> Iterator[str]:
    for template in templates(workload(documents)):
        spec = template["spec"]
        volumes = {one["name"] for one in spec["volumes"]}
        mounted = {
            mount["name"]
            for container in (*spec.get("initContainers", ()), *spec["containers"])
            for mount in container["volumeMounts"]
        }
        if volumes != mounted:
            yield f"{sorted(volumes ^ mounted)}"


@rule
def a_read_only_root_has_places_to_write(documents: list[Document]) -> Iterator[str]:
    for _, container in launched(documents):
        if not container["securityContext"].get("readOnlyRootFilesystem"):
            continue
        places = {one["mountPath"] for one in container["volumeMounts"] if not one.get("readOnly")}
        values = {one["name"]: one.get("value", "") for one in container["env"]}
        home = values.get("HOME", "/")
        if not {"/tmp", "/dev/shm", home} <= places:
            yield "/tmp, /dev/shm and HOME are to be written to"
        names = ("VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
        if any(not values.get(name, "").startswith(f"{home}/") for name in names):
            yield "caches are not below HOME"
        gaudi = "habana.ai/gaudi" in container["resources"]["limits"]
        if gaudi and "/var/log/habana_logs" not in places:
            yield "Habana's logs are to be written to"


# Around them


@rule
def evictions_are_limited(documents: list[Document]) -> Iterator[str]:
    budgets = of(documents, "PodDisruptionBudget")
    if len(budgets) != 1:
        yield f"{len(budgets)} budgets"
    for budget in budgets:
        if not _selects(budget["spec"]["selector"], documents):
            yield "the budget is for no pod of these"
        counted = workload(documents)["kind"] == "LeaderWorkerSet"
        if ("maxUnavailable" in budget["spec"]) != counted:
            yield "maxUnavailable is only for pods whose owner has a scale"


@rule
def the_network_is_closed(documents: list[Document]) -> Iterator[str]:
    policies = of(documents, "NetworkPolicy")
    group = [one for one in policies if "Egress" in one["spec"]["policyTypes"]]
    if len(policies) != 2 or len(group) != 1:
        yield "one policy for the group and one for the API"
        return
    (inside,) = group
    spec = inside["spec"]
    pods = {"podSelector": spec["podSelector"]}
    if not _selects(spec["podSelector"], documents):
        yield "the policy is for no pod of these"
    if {"from": [pods]} not in spec["ingress"] or {"to": [pods]} not in spec["egress"]:
        yield "nodes of a replica reach each other on every port"
    if any(not {"from"} & set(one) for one in spec["ingress"]):
        yield "everybody reaches every port, and what these take is pickled"
    ports = {port["port"] for one in spec["egress"] for port in one.get("ports", ())}
    if workload(documents)["kind"] == "RayService":
        asked = {port["port"] for one in spec["ingress"] for port in one.get("ports", ())}
        if asked != {8265, 8000}:
            yield "KubeRay's operator asks the dashboard and the head's proxy"
    if 53 not in ports:
        yield "the head's name is not to be resolved"


def _selects(selector: Document, documents: list[Document]) -> bool:
    """Whether a selector is one of the labels that these pods get."""
    wanted = selector["matchLabels"]
    name = workload(documents)["metadata"]["name"]
    given = {**next(templates(workload(documents)))["metadata"]["labels"], f"{LWS}/name": name}
    return all(given.get(key) == value for key, value in wanted.items())


@rule
def scaling_is_by_groups(documents: list[Document]) -> Iterator[str]:
    one = workload(documents)
    for scaler in of(documents, "HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        if (target["kind"], target["name"]) != (one["kind"], one["metadata"]["name"]):
            yield "scales something else than the set"

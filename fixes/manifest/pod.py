"""The pod of a node: one template for every rank, since the launcher finds out which it is."""

from __future__ import annotations

from fixes.manifest.wanted import APPLYING, MODELS, PRE_STOP, Wanted
from fixes.manifest.yamltext import Document, Note, Value

TOOL = "/opt/vllm-fixes"
ZIPAPP = f"{TOOL}/vllm-fixes.pyz"
TOKEN = "/run/secrets/vllm-fixes"
OVERLAY = "/overlay"
CACHE = "/cache"
SCRATCH = "/scratch"
PERIOD = 15
#: `ready` and `live` answer within 5 s; Python has to start before, on a busy node.
TIMEOUT = 10


def tool(wanted: Wanted) -> list[Value]:
    """How the container calls vllm-fixes."""
    return ["python3", f"{TOOL}/fixes/apply_all.py" if wanted.fixes == "image" else ZIPAPP]


def template(wanted: Wanted, labels: Document, **more: Value) -> Document:
    """A pod template. ``more`` goes into its spec."""
    spec: Document = {}
    if wanted.gang in ("volcano", "kai"):
        spec["schedulerName"] = {"volcano": "volcano", "kai": "kai-scheduler"}[wanted.gang]
    if wanted.gang == "kai":
        labels = {**labels, "kai.scheduler/queue": wanted.queue}
    spec |= placement(wanted)
    spec["terminationGracePeriodSeconds"] = Note(
        f"preStop {PRE_STOP} s, --grace {wanted.grace} s, and 15 s for what is left.",
        wanted.termination,
    )
    if wanted.user:
        spec["securityContext"] = {
            "runAsNonRoot": True,
            "runAsUser": wanted.user,
            "runAsGroup": wanted.user,
            "fsGroup": wanted.user,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
    spec |= more
    if wanted.fixes == "overlay":
        spec["initContainers"] = [_overlay(wanted)]
    spec["containers"] = [_engine(wanted)]
    spec["volumes"] = _volumes(wanted)
    return {"metadata": {"labels": labels}, "spec": spec}


def placement(wanted: Wanted) -> Document:
    """Where a pod goes, and what it does not get."""
    spec: Document = {
        "enableServiceLinks": Note("A Service called vllm would set VLLM_PORT to a URI.", False),
        "automountServiceAccountToken": False,
        "tolerations": tolerations(wanted),
    }
    return spec | selector(wanted)


def tolerations(wanted: Wanted) -> list[Value]:
    """For nodes that are kept for pods with cards, as many are."""
    return [{"key": wanted.card, "operator": "Exists", "effect": "NoSchedule"}]


def selector(wanted: Wanted) -> Document:
    """The nodes to take, where they are named by their labels."""
    if not wanted.node_label:
        return {}
    labels = (label.partition("=") for label in wanted.node_label)
    return {"nodeSelector": {key: value for key, _, value in labels}}


def resources(wanted: Wanted) -> Document:
    """Whole nodes: so no other pod, and not the group's other one, comes beside it."""
    sizes: Document = {
        wanted.card: wanted.cards,
        "cpu": wanted.cpu,
        "memory": wanted.memory_size,
    }
    if wanted.platform == "gaudi":
        sizes["hugepages-2Mi"] = "9500Mi"
    for also in wanted.also:
        name, _, count = also.partition("=")
        sizes[name] = int(count) if count.isdigit() else count
    return {"limits": sizes, "requests": dict(sizes)}


def shared_memory(size: str) -> Document:
    """The volume for /dev/shm."""
    limit = Note("Counts as memory of the pod.", size)
    return {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": limit}}


def storage(wanted: Wanted) -> tuple[list[Value], list[Value], list[Value]]:
    """Where the model comes from: variables, mounts and volumes."""
    if wanted.model_claim:
        claim: Document = {"claimName": wanted.model_claim, "readOnly": True}
        mount: Document = {"name": "models", "mountPath": MODELS, "readOnly": True}
        return [], [mount], [{"name": "models", "persistentVolumeClaim": claim}]
    variables: list[Value] = [{"name": "HF_HOME", "value": f"{CACHE}/huggingface"}]
    if wanted.hf_secret:
        source: Document = {"secretKeyRef": {"name": wanted.hf_secret, "key": "token"}}
        variables.append({"name": "HF_TOKEN", "valueFrom": source})
    volume: Document = {"name": "cache", "emptyDir": {}}
    if wanted.cache_claim:
        volume = {"name": "cache", "persistentVolumeClaim": {"claimName": wanted.cache_claim}}
    note = "" if wanted.cache_claim else "Empty in every new pod: each loads the whole model."
    return variables, [{"name": "cache", "mountPath": CACHE}], [_noted(note, volume)]


def _engine(wanted: Wanted) -> Document:
    stored, mounts, _ = storage(wanted)
    probes: Document = {
        "startupProbe": Note(
            f"{wanted.budget} s: {APPLYING} to apply and verify the fixes, {wanted.meet} for the\n"
            f"other nodes (--meet-timeout), {wanted.startup} to load the model.",
            _probe(wanted, "ready", -(-wanted.budget // PERIOD)),
        ),
        "livenessProbe": _probe(wanted, "live", 3),
        "readinessProbe": Note(
            "On the head: one token, made by the whole replica.", _probe(wanted, "ready", 3)
        ),
    }
    return {
        "name": "vllm",
        "image": wanted.image_name,
        "workingDir": Note("No folder of the image that has a `vllm` of its own.", "/"),
        "command": Note(
            "/dev/shm outlives a container that crashed, and what it left in it.",
            ["sh", "-ec", _prelude(wanted), "sh"],
        ),
        "args": Note(
            "One line for all nodes: rank, number of nodes and the head's address are in the\n"
            "variables that the controller sets.",
            _arguments(wanted),
        ),
        "env": [*variables(wanted), *stored],
        "ports": [{"name": "http", "containerPort": wanted.port}],
        "resources": resources(wanted),
        **probes,
        "lifecycle": {
            "preStop": Note(
                "Until no Service sends requests here any more.",
                {"exec": {"command": ["sleep", str(PRE_STOP)]}},
            )
        },
        "terminationMessagePolicy": Note(
            "The first cause of an end is the log's last line.", "FallbackToLogsOnError"
        ),
        "securityContext": _security(wanted),
        "volumeMounts": [*_mounts(wanted), *mounts],
    }


def _prelude(wanted: Wanted) -> str:
    """What happens before the launcher takes the place of the shell."""
    lines = ["rm -rf /dev/shm/*"]
    if wanted.fixes != "image":
        lines.append(f"test -s {ZIPAPP}")  # an empty file is a program that ends with 0
    return "; ".join([*lines, 'exec "$@"'])


def _arguments(wanted: Wanted) -> list[Value]:
    words: list[Value] = [*tool(wanted), "launch", f"--profile={wanted.profile}"]
    words += [f"--fix={name}" for name in wanted.fix]
    if wanted.fixes == "overlay":
        words.append(Note("The init container has proven them.", "--verify=bytes"))
    words += [
        f"--tensor-parallel-size={wanted.tensor_parallel_size}",
        f"--pipeline-parallel-size={wanted.pipeline_parallel_size}",
        f"--token-file={TOKEN}/token",
        f"--meet-timeout={wanted.meet}",
        f"--grace={wanted.grace}",
        Note(
            "A failed start is not repeated at once: nothing else waits.",
            f"--fail-slow={wanted.fail_slow}",
        ),
        "--",
        wanted.model,
        "--port",
        str(wanted.port),
    ]
    return [*words, *map(literal, wanted.arguments)]


def literal(word: str) -> str:
    """A word that the kubelet leaves as it is: it reads $(NAME), and $$ as a dollar."""
    return word.replace("$", "$$")


def _probe(wanted: Wanted, verb: str, failures: int) -> Document:
    return {
        "exec": {"command": [*tool(wanted), verb]},
        "periodSeconds": PERIOD,
        "timeoutSeconds": TIMEOUT,
        "failureThreshold": failures,
    }


def engine_variables(wanted: Wanted) -> list[Value]:
    """What vLLM needs on every node, whoever starts it: its address, time to load, and what it
    is given by ``--env``.
    """
    address: Document = {"fieldRef": {"fieldPath": "status.podIP"}}
    given: list[Value] = [
        {"name": name, "value": literal(value)}
        for name, _, value in (each.partition("=") for each in wanted.env)
    ]
    return [
        {"name": "VLLM_HOST_IP", "valueFrom": address},
        {"name": "VLLM_ENGINE_READY_TIMEOUT_S", "value": str(wanted.startup)},
        *given,
    ]


def variables(wanted: Wanted) -> list[Value]:
    """All variables of a node that runs the launcher, but those of the model's storage."""
    found = engine_variables(wanted)
    if wanted.fixes == "overlay":
        found.append({"name": "PYTHONPATH", "value": f"{OVERLAY}/fixes"})
    if wanted.platform == "gaudi":
        found.append({"name": "OMPI_MCA_btl_vader_single_copy_mechanism", "value": "none"})
    return [*found, *_home(wanted)]


def _home(wanted: Wanted) -> list[Value]:
    """A home, and what goes into it, for a user who has none."""
    if not wanted.user:
        return []
    known = Note("For a user that /etc/passwd does not know.", {"name": "USER", "value": "vllm"})
    caches: list[Value] = [
        {"name": name, "value": f"{SCRATCH}/{folder}"}
        for name, folder in (
            ("VLLM_CACHE_ROOT", "vllm"),
            ("TRITON_CACHE_DIR", "triton"),
            ("TORCHINDUCTOR_CACHE_DIR", "inductor"),
        )
    ]
    return [{"name": "HOME", "value": SCRATCH}, known, *caches]


def _security(wanted: Wanted) -> Document:
    capabilities: Document = {}
    added: list[Value] = []
    if wanted.platform == "gaudi":
        added.append("SYS_NICE")
    if any(also.startswith("rdma/") for also in wanted.also):
        added.append("IPC_LOCK")
    if added:
        capabilities["add"] = added
    if wanted.user:
        capabilities["drop"] = ["ALL"]
    found: Document = {"allowPrivilegeEscalation": False}
    if wanted.user:
        found["readOnlyRootFilesystem"] = True
    if capabilities:
        found["capabilities"] = capabilities
    return found


def _mounts(wanted: Wanted) -> list[Value]:
    mounts: list[Value] = [
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "token", "mountPath": TOKEN, "readOnly": True},
    ]
    if wanted.fixes != "image":
        mounts.append({"name": "vllm-fixes", "mountPath": TOOL, "readOnly": True})
    if wanted.fixes == "overlay":
        mounts.append({"name": "overlay", "mountPath": OVERLAY, "readOnly": True})
    if wanted.user:
        mounts += _writable(wanted)
    return mounts


def _writable(wanted: Wanted) -> list[Value]:
    """What has to be written to where the root is read-only."""
    mounts: list[Value] = [
        {"name": "scratch", "mountPath": SCRATCH},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    if wanted.platform == "gaudi":
        mounts.append({"name": "logs", "mountPath": "/var/log/habana_logs"})
    return mounts


def _volumes(wanted: Wanted) -> list[Value]:
    # The file is root's. A named user reads it by the pod's fsGroup, the image's own as anybody.
    secret: Document = {
        "secretName": wanted.secret,
        "defaultMode": Note("0440" if wanted.user else "0444", 0o440 if wanted.user else 0o444),
    }
    volumes: list[Value] = [shared_memory(wanted.shm), {"name": "token", "secret": secret}]
    if wanted.fixes != "image":
        volumes.append({"name": "vllm-fixes", "configMap": {"name": wanted.config_map}})
    if wanted.fixes == "overlay":
        volumes.append({"name": "overlay", "emptyDir": {}})
    if wanted.user:
        names = ["scratch", "tmp", *(["logs"] if wanted.platform == "gaudi" else [])]
        volumes += [{"name": name, "emptyDir": {}} for name in names]
    return [*volumes, *storage(wanted)[2]]


def _overlay(wanted: Wanted) -> Document:
    """Makes the overlay: in the same image, and with the same devices, as they are then given
    to the engine's container.
    """
    words: list[Value] = [*tool(wanted), "overlay", f"--profile={wanted.profile}"]
    words += wanted.bundles
    mounts: list[Value] = [
        {"name": "vllm-fixes", "mountPath": TOOL, "readOnly": True},
        {"name": "overlay", "mountPath": OVERLAY},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    home: Document = {}
    if wanted.user:
        mounts += _writable(wanted)
        home = {"env": _home(wanted)}
    return {
        "name": "overlay",
        "image": wanted.image_name,
        "workingDir": "/",
        "command": ["sh", "-ec", f'test -s {ZIPAPP}; exec "$@"', "sh"],
        "args": [*words, f"--to={OVERLAY}/fixes"],
        **home,
        "resources": Note("Those of the engine, which starts after it.", resources(wanted)),
        "securityContext": _security(wanted),
        "volumeMounts": mounts,
    }


def _noted(text: str, value: Value) -> Value:
    return Note(text, value) if text else value

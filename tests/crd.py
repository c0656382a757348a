"""Kubernetes' and its extensions' own schemas, with unknown fields refused.

The CustomResourceDefinitions are in a folder beside the checkout, or where VLLM_FIXES_CRD says;
they are too large to be kept here. What is in neither is checked by no schema.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from release import CHECKOUT

FOLDER = Path(os.environ.get("VLLM_FIXES_CRD") or CHECKOUT.parent / "shared/crd")
#: The oldest that a LeaderWorkerSet works on, and the newest that is known.
KUBERNETES = ("1.27", kubernetes_validate.latest_version())
#: Kinds of which there is no definition at all: read and compared, by no schema.
UNKNOWN = frozenset({"DynamoGraphDeployment"})
Document = dict[str, Any]


def needed() -> None:
    """Skip where the definitions are not there, unless they have to be."""
    if FOLDER.is_dir():
        return
    reason = f"no CustomResourceDefinitions in {FOLDER} (VLLM_FIXES_CRD names another folder)"
    if os.environ.get("VLLM_FIXES_CRD_REQUIRED"):
        pytest.fail(reason)
    pytest.skip(reason)


@functools.cache
def _definitions() -> dict[tuple[str, str], jsonschema.Draft202012Validator]:
    found = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        for document in yaml.load_all(path.read_bytes(), yaml.CSafeLoader):
            spec = (document or {}).get("spec", {})
            for version in spec.get("versions", ()):
                schema = _strict(version["schema"]["openAPIV3Schema"])
                key = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
                found[key] = jsonschema.Draft202012Validator(schema)
    return found


def _strict(schema: Any) -> Any:
    """A schema that takes no field it does not name, as `kubectl --validate=strict` does."""
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(value) for key, value in schema.items()}
    open_ended = {"additionalProperties", "x-kubernetes-preserve-unknown-fields"} & set(schema)
    if schema.get("type") == "object" and "properties" in schema and not open_ended:
        made["additionalProperties"] = False
    return made


def problems(document: Document) -> list[str]:
    """What the schemas say against a document, and against the pods in it."""
    key = (document["apiVersion"], document["kind"])
    found = []
    if key in _definitions():
        errors = _definitions()[key].iter_errors(document)
        found += [f"{error.json_path}: {error.message}" for error in errors]
        # Definitions leave metadata open; it is the same in every kind.
        core = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": document["metadata"]}
        found += _core(core)
    elif document["kind"] not in UNKNOWN:
        return _core(document)
    for template in templates(document):
        found += _core({"apiVersion": "v1", "kind": "PodTemplate", "template": template})
    return found


def templates(document: Any) -> Iterator[Document]:
    """Every pod template in a document."""
    if isinstance(document, list):
        for one in document:
            yield from templates(one)
    elif isinstance(document, dict):
        if isinstance(document.get("spec"), dict) and "containers" in document["spec"]:
            yield document
            return
        for one in document.values():
            yield from templates(one)


def _core(document: Document) -> list[str]:
    found = []
    for version in KUBERNETES:
        try:
            kubernetes_validate.validate(copy.deepcopy(document), version, strict=True)
        except kubernetes_validate.ValidationError as error:
            found.append(f"{version}: {error.json_path}: {error.message}")
        except kubernetes_validate.SchemaNotFoundError as error:
            found.append(error.message)
    return found

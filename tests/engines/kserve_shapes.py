"""KServe's own description of its objects, read out of its generated classes, which are not imported."""

import ast
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import kubernetes_validate

#: Of which the generated classes say nothing: fields and types as the CRD of KServe 0.21 has them.
LLM_SPEC = {
    "model": {"uri": str, "name": str, "lora": {"adapters": list, "maxAdapters": int, "maxRank": int}},
    "replicas": int,
    "template": "V1PodSpec",
    "worker": "V1PodSpec",
    "labels": dict,
    "annotations": dict,
    "baseRefs": list,
    "parallelism": dict,
    "prefill": dict,
    "router": dict,
}


@cache
def load_shape(name: str) -> tuple[dict[str, str], dict[str, str]] | None:
    """Types and JSON names by attribute; None where it is no class of KServe's."""
    found = find_spec("kserve")
    assert found is not None, "kserve is installed by `make setup`"
    assert found.submodule_search_locations
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    path = Path(found.submodule_search_locations[0], "models", f"{words.lower()}.py")
    if not path.exists():
        return None
    shape: dict[str, dict[str, str]] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Name) and target.id in ("openapi_types", "attribute_map"):
            shape[target.id] = ast.literal_eval(node.value)  # type: ignore[attr-defined]
    return shape["openapi_types"], shape["attribute_map"]


def check_shape(found: Any, type_name: str, where: str = "") -> None:
    """Fails with the place of what does not fit."""
    if inner := re.fullmatch(r"list\[(.+)\]", type_name):
        assert isinstance(found, list), where
        for index, each in enumerate(found):
            check_shape(each, inner[1], f"{where}[{index}]")
    elif type_name in PRIMITIVES:
        assert isinstance(found, PRIMITIVES[type_name]), f"{where}: {found!r} is no {type_name}"
    else:
        shape = load_shape(type_name)
        if shape is None:  # of Kubernetes itself, whose schemas `check_pod` knows
            assert where, f"{type_name} is no class of KServe"
            return
        types, names = shape
        by_name = {json: types[attribute] for attribute, json in names.items()}
        for key, value in found.items():
            assert key in by_name, f"{where}.{key} is no field of {type_name}"
            check_shape(value, by_name[key], f"{where}.{key}")


PRIMITIVES: dict[str, Any] = {"str": str, "int": int, "bool": bool, "float": float, "dict(str, str)": dict}


def check_pod(spec: dict[str, Any]) -> None:
    """A pod's spec against the schema that Kubernetes publishes."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    kubernetes_validate.validate(pod, "1.34", strict=True)


def check_llm_spec(spec: dict[str, Any], shape: dict[str, Any] = LLM_SPEC, where: str = "spec") -> None:
    for key, value in spec.items():
        assert key in shape, f"{where}.{key} is no field"
        wanted = shape[key]
        if wanted == "V1PodSpec":
            check_pod(value)
        elif isinstance(wanted, dict):
            check_llm_spec(value, wanted, f"{where}.{key}")
        else:
            assert isinstance(value, wanted), f"{where}.{key}: {value!r}"

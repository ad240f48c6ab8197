"""Definitions of the custom resources, as the API server wants them, from those of tests/chart."""

from __future__ import annotations

from typing import Any

from tests.chart.resources import RESOURCES
from tests.live.api import Object

_GROUPS = {
    "SparkApplication": ("sparkoperator.k8s.io", "v1beta2"),
    "ServiceMonitor": ("monitoring.coreos.com", "v1"),
    "PrometheusRule": ("monitoring.coreos.com", "v1"),
}


def definitions() -> list[Object]:
    return [_definition(kind) for kind in RESOURCES]


def _definition(kind: str) -> Object:
    group, version = _GROUPS[kind]
    plural = f"{kind.lower()}s"
    spec = structural(RESOURCES[kind]["properties"]["spec"])
    schema = {"type": "object", "required": ["spec"], "properties": {"spec": spec}}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        # Groups below k8s.io want to be approved, or to say that they are not.
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "scope": "Namespaced",
            "versions": [served],
        },
    }


def structural(schema: Any) -> Any:
    """As the API server wants it: every field typed, and what is not defined refused without being asked to."""
    if not isinstance(schema, dict):
        return schema
    result = {key: value for key, value in schema.items() if key != "additionalProperties"}
    if isinstance(result.get("type"), list):
        del result["type"]
        return {**result, "x-kubernetes-int-or-string": True}
    if "enum" in result:
        result["type"] = "string"
    if isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = structural(schema["additionalProperties"])
    if "properties" in result:
        result["properties"] = {name: structural(each) for name, each in schema["properties"].items()}
    elif result.get("type") == "object" and "additionalProperties" not in result:
        # The template of a pod.
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    if "items" in result:
        result["items"] = structural(schema["items"])
    return result

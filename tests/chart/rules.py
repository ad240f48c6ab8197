"""What a careful operator looks for in manifests: Pod Security "restricted", resources, names, references.

Each rule takes all manifests of a release and yields complaints. Rules know nothing of the chart.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import yaml

Manifest = dict[str, Any]
NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
VOLUMES_ALLOWED: Final = frozenset(
    {"configMap", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret", "csi"}
)


def pods(manifests: Sequence[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Every pod template: of workloads, of SparkApplications, and in Spark's pod template files."""
    for each in manifests:
        name = f"{each['kind']}/{each['metadata']['name']}"
        if each["kind"] in ("Deployment", "StatefulSet"):
            yield name, each["spec"]["template"]
        elif each["kind"] == "Pod":
            yield name, each
        elif each["kind"] == "SparkApplication":
            for role in ("driver", "executor"):
                yield f"{name}/{role}", each["spec"][role]["template"]
        elif each["kind"] == "ConfigMap" and "executor.yaml" in each["data"]:
            yield f"{name}/executor.yaml", yaml.safe_load(each["data"]["executor.yaml"])


def restricted(manifests: Sequence[Manifest]) -> Iterator[str]:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted"""
    for name, pod in pods(manifests):
        spec = pod["spec"]
        security = spec.get("securityContext", {})
        if not security.get("runAsNonRoot") or security.get("runAsUser", 1) == 0:
            yield f"{name} may run as root"
        if security.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield f"{name} has no seccomp profile"
        for field in ("hostNetwork", "hostPID", "hostIPC"):
            if spec.get(field):
                yield f"{name} uses {field}"
        for volume in spec.get("volumes", []):
            if not set(volume) - {"name"} <= VOLUMES_ALLOWED:
                yield f"{name} has a volume that is not allowed: {volume}"
        for container in spec["containers"] + spec.get("initContainers", []):
            inside = container.get("securityContext", {})
            if inside.get("allowPrivilegeEscalation") is not False or inside.get("privileged"):
                yield f"{name}/{container['name']} may gain privileges"
            if inside.get("capabilities", {}).get("drop") != ["ALL"] or inside["capabilities"].get("add"):
                yield f"{name}/{container['name']} keeps capabilities"
            if inside.get("readOnlyRootFilesystem") is not True:
                yield f"{name}/{container['name']} can write to its image"


def tokens(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Only drivers get a token, and no pod gets the addresses of services as variables that look like ours."""
    for name, pod in pods(manifests):
        driver = pod["metadata"]["labels"].get("app.kubernetes.io/component") == "driver"
        if pod["spec"].get("automountServiceAccountToken") is not driver:
            yield f"{name}: automountServiceAccountToken is not {driver}"
        if pod["spec"].get("enableServiceLinks") is not False:
            yield f"{name}: enableServiceLinks is not off"


def resources(manifests: Sequence[Manifest]) -> Iterator[str]:
    for name, pod in pods(manifests):
        if "Spark" in name or name.endswith("executor.yaml"):
            continue  # Spark sets them
        for container in pod["spec"]["containers"]:
            given = container.get("resources", {})
            if not {"cpu", "memory"} <= set(given.get("requests", {})) or "memory" not in given.get("limits", {}):
                yield f"{name}/{container['name']} lacks requests, or a limit of memory"
        for volume in pod["spec"].get("volumes", []):
            if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
                yield f"{name}: volume {volume['name']} has no limit"


def images(manifests: Sequence[Manifest]) -> Iterator[str]:
    for name, pod in pods(manifests):
        for container in pod["spec"]["containers"]:
            image = container["image"]
            tag = image.rpartition("/")[2].partition(":")[2]
            if "@sha256:" not in image and tag in ("", "latest"):
                yield f"{name}/{container['name']}: image {image} is not pinned"


def probes(manifests: Sequence[Manifest]) -> Iterator[str]:
    for name, pod in pods(manifests):
        for container in pod["spec"]["containers"]:
            if not name.startswith(("Deployment", "StatefulSet")):
                continue
            if "readinessProbe" not in container:
                yield f"{name}/{container['name']} has no readiness probe"
            if "livenessProbe" not in container and container["name"] != "driver":
                yield f"{name}/{container['name']} has no liveness probe"


def mounts(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Each mount has its volume, each volume is used, no path is mounted twice."""
    for name, pod in pods(manifests):
        volumes = [each["name"] for each in pod["spec"].get("volumes", [])]
        volumes += [
            each["metadata"]["name"]
            for owner in manifests
            if f"{owner['kind']}/{owner['metadata']['name']}" == name
            for each in owner["spec"].get("volumeClaimTemplates", [])
        ]
        used: list[str] = []
        for container in pod["spec"]["containers"]:
            used += [each["name"] for each in container.get("volumeMounts", [])]
            paths = [each["mountPath"] for each in container.get("volumeMounts", [])]
            if len(set(paths)) != len(paths):
                yield f"{name}: a path is mounted twice: {paths}"
            names = [each["name"] for each in container.get("env", [])]
            if len(set(names)) != len(names):
                yield f"{name}: a variable is set twice: {names}"
        if set(used) != set(volumes) or len(set(volumes)) != len(volumes):
            yield f"{name}: volumes {sorted(volumes)}, mounts {sorted(used)}"


def names(manifests: Sequence[Manifest]) -> Iterator[str]:
    seen = set()
    for each in manifests:
        name = each["metadata"]["name"]
        place = (each["kind"], name)
        if place in seen:
            yield f"{place} is there twice"
        seen.add(place)
        if not NAME.fullmatch(name):
            yield f"{place} is not a legal name"
        if each["kind"] == "StatefulSet" and len(name) > 52:
            yield f"{place} is too long: its pods' labels have a suffix"
        labels = dict(each["metadata"].get("labels", {}))
        for value in labels.values():
            if not isinstance(value, str) or not LABEL.fullmatch(value):
                yield f"{place} has the label {value!r}"
        if "app.kubernetes.io/instance" not in labels:
            yield f"{place} has no instance label"


def selectors(manifests: Sequence[Manifest]) -> Iterator[str]:
    """What selects pods finds some: a selector with a typing error selects nothing, silently."""
    labels = [pod["metadata"]["labels"] for _, pod in pods(manifests)]
    for each in manifests:
        name = f"{each['kind']}/{each['metadata']['name']}"
        spec = each.get("spec", {})
        if each["kind"] == "Service":
            wanted = spec["selector"]
        elif each["kind"] == "NetworkPolicy":
            wanted = spec["podSelector"]["matchLabels"]
        elif each["kind"] in ("PodDisruptionBudget", "Deployment", "StatefulSet"):
            wanted = spec["selector"]["matchLabels"]
        else:
            continue
        if not any(wanted.items() <= have.items() for have in labels):
            yield f"{name} selects nothing: {wanted}"


def policies(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Every pod is selected by a policy that denies both directions, if there are policies at all."""
    found = [each["spec"] for each in manifests if each["kind"] == "NetworkPolicy"]
    denying = [each["podSelector"]["matchLabels"] for each in found if not {"ingress", "egress"} & set(each)]
    for name, pod in pods(manifests):
        if found and not any(wanted.items() <= pod["metadata"]["labels"].items() for wanted in denying):
            yield f"{name} is not denied anything"


def rights(manifests: Sequence[Manifest]) -> Iterator[str]:
    for each in manifests:
        if each["kind"] in ("ClusterRole", "ClusterRoleBinding"):
            yield f"{each['kind']} reaches beyond the namespace"
        for rule in each.get("rules", []) if each["kind"] == "Role" else []:
            if "*" in rule["verbs"] + rule["resources"] + rule["apiGroups"] or "secrets" in rule["resources"]:
                yield f"Role/{each['metadata']['name']} gives too much: {rule}"


def contents(secret: Manifest) -> dict[str, str]:
    """A Secret's entries as a pod finds them."""
    encoded = {name: base64.b64decode(text).decode() for name, text in secret.get("data", {}).items()}
    return {**encoded, **secret.get("stringData", {})}


def secrets(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Nothing that is in a Secret is anywhere else."""
    texts = [
        part
        for each in manifests
        if each["kind"] == "Secret"
        for value in contents(each).values()
        for part in re.findall(r"[A-Za-z0-9_-]{32,}", value)
    ]
    for each in manifests:
        if each["kind"] != "Secret":
            dumped = yaml.safe_dump(each, width=10_000)
            yield from (f"{each['kind']}/{each['metadata']['name']} has a secret" for text in texts if text in dumped)


RULES: Final[tuple[Callable[[Sequence[Manifest]], Iterator[str]], ...]] = (
    restricted,
    tokens,
    resources,
    images,
    probes,
    mounts,
    names,
    selectors,
    policies,
    rights,
    secrets,
)

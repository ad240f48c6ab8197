"""Volumes are directories: of the pod (Secrets, ConfigMaps, tokens, emptyDir), or of a claim, which outlives it."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.live.api import Api, Object

PROVISIONER: Final = "trimtab.test/directory"
CLASSES: Final = ("standard", "nfs", "fast")


class NotYet(Exception):
    """Something that the pod needs is not there; as with a real kubelet, it is waited for."""


class Volumes:
    """The volumes of one pod."""

    def __init__(self, api: Api, pod: Object, directory: Path) -> None:
        self._api = api
        self._namespace = pod["metadata"]["namespace"]
        self._pod = pod
        self._directory = directory
        self._group = pod["spec"].get("securityContext", {}).get("fsGroup", 0)

    def make(self) -> None:
        self._directory.mkdir(exist_ok=True)
        for volume in self._pod["spec"].get("volumes", []):
            place = self._directory / volume["name"]
            if "persistentVolumeClaim" in volume:
                self._link(volume["persistentVolumeClaim"]["claimName"], place)
            elif "emptyDir" in volume:
                place.mkdir(exist_ok=True)
                self._open(place)
            else:
                self._write(place, self._contents(volume), _mode(volume))

    def refresh(self) -> None:
        """Secrets and ConfigMaps that have changed: a key that is rotated, for example."""
        for volume in self._pod["spec"].get("volumes", []):
            if "secret" in volume or "configMap" in volume:
                # What is deleted while the pod runs, or ends, stays as it was mounted.
                with contextlib.suppress(NotYet):
                    self._write(self._directory / volume["name"], self._contents(volume), _mode(volume))

    def _contents(self, volume: Object) -> dict[str, bytes]:
        if "secret" in volume:
            source = volume["secret"]
            return self._taken("secrets", source["secretName"], source)
        if "configMap" in volume:
            return self._taken("configmaps", volume["configMap"]["name"], volume["configMap"])
        if "projected" not in volume:
            raise NotYet(f"volume {volume['name']} is of a kind that this kubelet does not have")
        files: dict[str, bytes] = {}
        for source in volume["projected"]["sources"]:
            if "serviceAccountToken" in source:
                files[source["serviceAccountToken"]["path"]] = self._token().encode()
            elif "configMap" in source:
                files |= self._taken("configmaps", source["configMap"]["name"], source["configMap"])
            elif "downwardAPI" in source:
                for item in source["downwardAPI"]["items"]:
                    files[item["path"]] = str(field_of(self._pod, item["fieldRef"]["fieldPath"])).encode()
        return files

    def _taken(self, kind: str, name: str, source: Object) -> dict[str, bytes]:
        found = contents_of(self._api, kind, self._namespace, name)
        optional = source.get("optional", False)
        if found is None:
            if optional:
                return {}
            raise NotYet(f'{kind} "{name}" not found')
        items = source.get("items")
        if not items:
            return found
        for item in items:
            if item["key"] not in found and not optional:
                raise NotYet(f'{kind} "{name}" has no key "{item["key"]}"')
        return {item["path"]: found[item["key"]] for item in items if item["key"] in found}

    def _token(self) -> str:
        account = self._pod["spec"].get("serviceAccountName", "default")
        bound = {"kind": "Pod", "apiVersion": "v1", "name": self._pod["metadata"]["name"]}
        body: Object = {"spec": {"expirationSeconds": 7200, "boundObjectRef": bound}}
        made = self._api.create("serviceaccounts", self._namespace, body, account, "token")
        return str(made["status"]["token"])

    def _write(self, place: Path, files: dict[str, bytes], mode: int) -> None:
        """Each file by one rename: a reader sees the old content or the new."""
        place.mkdir(exist_ok=True)
        os.chmod(place, 0o755)
        for name in set(os.listdir(place)) - set(files):
            (place / name).unlink()
        for name, content in files.items():
            path = place / name
            if path.exists() and path.read_bytes() == content:
                continue
            part = place.parent / f".{place.name}.{name}"
            part.write_bytes(content)
            os.chown(part, 0, self._group)
            os.chmod(part, mode | (0o040 if self._group else 0))
            part.rename(path)

    def _link(self, claim: str, place: Path) -> None:
        found = self._api.get("persistentvolumeclaims", self._namespace, claim)
        if found is None or found["status"].get("phase") != "Bound":
            raise NotYet(f'persistentvolumeclaim "{claim}" is not bound')
        volume = self._api.get("persistentvolumes", None, found["spec"]["volumeName"])
        assert volume is not None
        self._open(Path(volume["spec"]["hostPath"]["path"]))
        place.unlink(missing_ok=True)
        place.symlink_to(volume["spec"]["hostPath"]["path"])

    def _open(self, place: Path) -> None:
        """fsGroup: the pod's group may write."""
        os.chown(place, 0, self._group)
        os.chmod(place, 0o2775 if self._group else 0o777)


def _mode(volume: Object) -> int:
    source = volume.get("secret") or volume.get("configMap") or volume.get("projected") or {}
    return int(source.get("defaultMode", 0o644))


def contents_of(api: Api, kind: str, namespace: str, name: str) -> dict[str, bytes] | None:
    found = api.get(kind, namespace, name)
    if found is None:
        return None
    data = found.get("data") or {}
    if kind == "secrets":
        return {key: base64.b64decode(value) for key, value in data.items()}
    return {key: value.encode() for key, value in data.items()}


def field_of(pod: Object, path: str) -> object:
    """A field of a pod, as the downward API names it: status.podIP, metadata.name."""
    value: object = pod
    for word in path.split("."):
        value = value.get(word, "") if isinstance(value, dict) else ""
    return value


def storage_class(name: str) -> Object:
    default = {"storageclass.kubernetes.io/is-default-class": "true"} if name == CLASSES[0] else {}
    return {"metadata": {"name": name, "annotations": default}, "provisioner": PROVISIONER}


def provision(api: Api, claims: Iterable[Object], volumes: Iterable[Object], directory: Path) -> None:
    """A directory for each claim that waits for one; the controllers bind them. Gone with the claim."""
    volumes = list(volumes)
    taken = {volume["metadata"]["name"] for volume in volumes}
    for claim in claims:
        name = f"pvc-{claim['metadata']['uid']}"
        waits = claim["status"].get("phase") == "Pending" and claim["spec"].get("storageClassName") in CLASSES
        if waits and name not in taken:
            place = directory / name
            place.mkdir(parents=True)
            meta = claim["metadata"]
            reference = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": meta["namespace"]}
            spec = {
                "capacity": {"storage": claim["spec"]["resources"]["requests"]["storage"]},
                "accessModes": claim["spec"]["accessModes"],
                "storageClassName": claim["spec"]["storageClassName"],
                "persistentVolumeReclaimPolicy": "Delete",
                "hostPath": {"path": str(place)},
                "claimRef": {**reference, "name": meta["name"], "uid": meta["uid"]},
            }
            annotations = {"pv.kubernetes.io/provisioned-by": PROVISIONER}
            api.create(
                "persistentvolumes", None, {"metadata": {"name": name, "annotations": annotations}, "spec": spec}
            )
    for volume in volumes:
        if volume["status"].get("phase") == "Released":
            shutil.rmtree(volume["spec"]["hostPath"]["path"], ignore_errors=True)
            api.delete("persistentvolumes", None, volume["metadata"]["name"], volume["metadata"]["uid"])

"""The process that is a pod's container: what it is started with, commands in it, and its end."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from tests.live import images
from tests.live.api import Api, Object
from tests.live.network import DNS, DOMAIN, KUBERNETES
from tests.live.volumes import NotYet, contents_of, field_of

_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


class PodProcess:
    """Runs from the moment it is made."""

    def __init__(self, api: Api, pod: Object, directory: Path) -> None:
        container = pod["spec"]["containers"][0]
        if len(pod["spec"]["containers"]) > 1 or pod["spec"].get("initContainers"):
            raise NotYet("pods of more than one container are not run here")
        image = images.find(container["image"])
        if image is None:
            raise NotYet(f"{container['image']} is none of the images that are known here (images.py)")
        environ = {**image.environ, "HOSTNAME": pod["metadata"]["name"], **_environ(api, pod, container)}
        words = [*(container.get("command") or image.entrypoint), *(container.get("args") or ())]
        if not container.get("command") and not container.get("args"):
            words += image.command
        security = pod["spec"].get("securityContext", {}) | container.get("securityContext", {})
        self._user, self._group = security.get("runAsUser", 65534), security.get("runAsGroup", 65534)
        namespace = pod["metadata"]["namespace"]
        searched = f"{namespace}.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}"
        resolve = f"nameserver {DNS}\nsearch {searched}\noptions ndots:5 timeout:2\n"
        hosts = f"127.0.0.1 localhost\n{field_of(pod, 'status.podIP')} {pod['metadata']['name']}\n"
        files = {**image.files, "/etc/resolv.conf": resolve, "/etc/hosts": hosts}
        self._environ = environ
        self._pid = directory / "pid"
        self._pid.unlink(missing_ok=True)
        state = directory.parents[1]
        spec = {
            "network": pod["metadata"]["uid"],
            "hostname": pod["metadata"]["name"],
            "layer": str(directory / "layer"),
            "state": str(state),
            "pid": str(self._pid),
            "image": dataclasses.asdict(image) | {"files": files},
            "mounts": [_mount(each, directory, state) for each in container.get("volumeMounts", [])],
            "read_only": security.get("readOnlyRootFilesystem", False),
            "user": self._user,
            "group": self._group,
            "groups": [security["fsGroup"]] if "fsGroup" in security else [],
            "command": [_REFERENCE.sub(lambda found: environ.get(found[1], found[0]), word) for word in words],
            "environ": environ,
            "directory": container.get("workingDir", image.directory),
        }
        path = directory / "container.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(spec))
        launcher = str(Path(__file__).with_name("container.py"))
        with (directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, launcher, str(path)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def poll(self) -> int | None:
        return self._process.poll()

    def execute(self, command: list[str], timeout: float) -> bool:
        """Run a command inside; whether it ended well in time."""
        if not self._pid.exists():
            return False
        inside = ["nsenter", "--target", self._pid.read_text(), "--mount", "--net", "--pid", "--uts"]
        inside += ["--root", "--wd"]
        user = ["setpriv", f"--reuid={self._user}", f"--regid={self._group}", "--clear-groups", "--no-new-privs"]
        try:
            done = subprocess.run(
                [*inside, *user, *command], env=self._environ, capture_output=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def end(self, pod: Object, why: str) -> int:
        """preStop, SIGTERM, the time of grace, SIGKILL."""
        seconds = pod["metadata"].get("deletionGracePeriodSeconds") if why == "deletion" else None
        if seconds is None:
            seconds = pod["spec"].get("terminationGracePeriodSeconds", 30)
        deadline = time.monotonic() + seconds
        stop = pod["spec"]["containers"][0].get("lifecycle", {}).get("preStop", {})
        if "exec" in stop and seconds > 0:
            self.execute(stop["exec"]["command"], seconds)
        self._process.terminate()
        try:
            return self._process.wait(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return 137


def _mount(each: Object, directory: Path, state: Path) -> Object:
    """Paths below the directory of all pods and claims, which a container has for as long as it is set up."""
    source = directory / "volumes" / each["name"] / each.get("subPath", "")
    return {
        "from": str(source.resolve().relative_to(state.resolve())),
        "path": os.path.normpath(each["mountPath"]),
        "read_only": each.get("readOnly", False),
    }


def _environ(api: Api, pod: Object, container: Object) -> dict[str, str]:
    namespace = pod["metadata"]["namespace"]
    environ = {
        "KUBERNETES_SERVICE_HOST": KUBERNETES,
        "KUBERNETES_SERVICE_PORT": "443",
    }
    for source in container.get("envFrom", []):
        kind, reference = ("secrets", "secretRef") if "secretRef" in source else ("configmaps", "configMapRef")
        found = contents_of(api, kind, namespace, source[reference]["name"])
        if found is None:
            raise NotYet(f'{kind} "{source[reference]["name"]}" not found')
        environ |= {name: value.decode() for name, value in found.items()}
    for each in container.get("env", []):
        source = each.get("valueFrom")
        if source is None:
            environ[each["name"]] = each.get("value", "")
        elif "fieldRef" in source:
            environ[each["name"]] = str(field_of(pod, source["fieldRef"]["fieldPath"]))
        elif "secretKeyRef" in source or "configMapKeyRef" in source:
            kind = "secrets" if "secretKeyRef" in source else "configmaps"
            wanted = source.get("secretKeyRef") or source["configMapKeyRef"]
            found = contents_of(api, kind, namespace, wanted["name"]) or {}
            if wanted["key"] not in found:
                raise NotYet(f'{kind} "{wanted["name"]}" has no key "{wanted["key"]}"')
            environ[each["name"]] = found[wanted["key"]].decode()
        else:
            raise NotYet(f"the variable {each['name']} has a source that this kubelet does not have")
    return environ

"""A stand-in for kubelets: runs the pods of all nodes as processes of this machine (container.py, images.py).

It keeps what pods are promised: volumes at their paths, users, a read-only root, an address each, probes, restarts,
preStop and SIGTERM before SIGKILL. It does not limit memory or CPU, and it knows pods of one container only.
"""

from __future__ import annotations

import contextlib
import datetime
import shutil
import threading
import time
import traceback
from pathlib import Path
from typing import Final

import httpx

from tests.live.api import Api, Object
from tests.live.network import HOST, Network
from tests.live.pod_process import PodProcess
from tests.live.probes import Probe
from tests.live.volumes import NotYet, Volumes, provision

KINDS: Final = ("persistentvolumeclaims", "persistentvolumes", "services", "endpointslices", "pods")
TICK_S: Final = 0.5
REFRESH_S: Final = 5.0
BACK_OFF_S: Final = 10.0
LOG_PORT: Final = 10250


class Kubelet:
    """One thread looks at the cluster, one runs each pod."""

    def __init__(self, api: Api, network: Network, directory: Path, nodes: int) -> None:
        self._api = api
        self._network = network
        self._directory = directory
        self._pods: dict[str, RunningPod] = {}
        self._stop = threading.Event()
        for number in range(1, nodes + 1):
            _make_node(api, f"node-{number}")
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=30)

    def log_of(self, namespace: str, name: str) -> bytes | None:
        for pod in list(self._pods.values()):
            if (pod.namespace, pod.name) == (namespace, name) and pod.log.exists():
                return pod.log.read_bytes()
        return None

    def _look(self) -> None:
        while not self._stop.wait(TICK_S):
            try:
                self._once()
            except (httpx.HTTPError, RuntimeError, OSError):
                traceback.print_exc()

    def _once(self) -> None:
        api = self._api
        claims, volumes, services, slices, pods = (api.list(kind, resourceVersion="0") for kind in KINDS)
        provision(api, claims, volumes, self._directory / "claims")
        self._network.update(services, slices)
        seen = set()
        for pod in pods:
            uid = pod["metadata"]["uid"]
            seen.add(uid)
            if uid in self._pods:
                self._pods[uid].latest = pod
            elif pod["spec"].get("nodeName") and pod["status"].get("phase") == "Pending":
                self._pods[uid] = RunningPod(api, self._network, pod, self._directory / "pods" / uid)
        for uid in self._pods.keys() - seen:
            self._pods.pop(uid).gone = True


class RunningPod:
    """A pod from its node's choice to its end."""

    def __init__(self, api: Api, network: Network, pod: Object, directory: Path) -> None:
        self._api = api
        self._network = network
        self.latest = pod
        self.gone = False
        self.namespace, self.name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        self._uid = pod["metadata"]["uid"]
        self._directory = directory
        self.log = directory / "log"
        self._container: Object = pod["spec"]["containers"][0]
        self._started = _now()
        self._status: Object = {}
        self._restarts = 0
        self._address = ""
        self._last: Object = {}
        threading.Thread(target=self._run, daemon=True, name=self.name).start()

    @property
    def _ending(self) -> bool:
        return self.gone or "deletionTimestamp" in self.latest["metadata"]

    def _run(self) -> None:
        volumes = Volumes(self._api, self.latest, self._directory / "volumes")
        self._directory.mkdir(parents=True)
        self._address = self._network.join(self._uid)
        try:
            process = self._start(volumes)
            while process is not None:
                process = self._attend(process, volumes)
        except Exception:
            traceback.print_exc()
        finally:
            self._network.leave(self._uid)
        # A pod that has ended stays until somebody deletes it.
        while not self._ending:
            time.sleep(TICK_S)
        self._api.delete("pods", self.namespace, self.name, self._uid)
        if self.log.exists():
            kept = self._directory.parents[1] / "logs"
            kept.mkdir(exist_ok=True)
            self.log.rename(kept / f"{self.namespace}.{self.name}.{self._uid[:8]}.log")
        shutil.rmtree(self._directory, ignore_errors=True)

    def _start(self, volumes: Volumes) -> PodProcess | None:
        """Waits for what the pod needs. None if it is deleted before."""
        while not self._ending:
            try:
                volumes.make()
                with_address = {**self.latest, "status": {**self.latest["status"], "podIP": self._address}}
                return PodProcess(self._api, with_address, self._directory)
            except NotYet as error:
                self._report("Pending", {"waiting": {"reason": "ContainerCreating", "message": str(error)}})
                time.sleep(1)
        return None

    def _attend(self, process: PodProcess, volumes: Volumes) -> PodProcess | None:
        """Until the process ends, or has to; then the next one, or None."""
        spec = self._container
        begun = _now()
        startup = Probe(spec["startupProbe"], passed=False) if "startupProbe" in spec else None
        liveness = Probe(spec["livenessProbe"], passed=True) if "livenessProbe" in spec else None
        ready = Probe(spec["readinessProbe"], passed=False) if "readinessProbe" in spec else None
        running = {"running": {"startedAt": begun}}
        refresh_at = time.monotonic() + REFRESH_S
        while (code := process.poll()) is None and not self._ending:
            if startup is not None and not startup.passed:
                startup.ask(spec, self._address, process.execute)
                if startup.failed:
                    process.end(self.latest, "startupProbe")
            else:
                for probe in (liveness, ready):
                    if probe is not None:
                        probe.ask(spec, self._address, process.execute)
                if liveness is not None and liveness.failed:
                    process.end(self.latest, "livenessProbe")
            started = startup is None or startup.passed
            # An API server that is slow must not end the pods: what was not told or read now is so a moment later.
            with contextlib.suppress(httpx.HTTPError):
                self._report("Running", running, ready=started and (ready is None or ready.passed), started=started)
                if time.monotonic() > refresh_at:
                    volumes.refresh()
                    refresh_at = time.monotonic() + REFRESH_S
            time.sleep(0.2)
        if code is None:
            code = process.end(self.latest, "deletion")
        ended = {
            "terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "finishedAt": _now()}
        }
        policy = self.latest["spec"].get("restartPolicy", "Always")
        if self._ending or policy == "Never" or (policy == "OnFailure" and code == 0):
            self._report("Succeeded" if code == 0 else "Failed", ended)
            return None
        self._restarts += 1
        self._last = ended
        self._report("Running", {"waiting": {"reason": "CrashLoopBackOff", "message": f"exit code {code}"}})
        until = time.monotonic() + BACK_OFF_S * min(self._restarts, 6)
        while time.monotonic() < until and not self._ending:
            time.sleep(TICK_S)
        return self._start(volumes)

    def _report(self, phase: str, state: Object, *, ready: bool = False, started: bool = False) -> None:
        """The pod's status, where it has changed."""
        yes_or_no = {True: "True", False: "False"}
        conditions = {"Initialized": True, "ContainersReady": ready, "Ready": ready}
        status: Object = {
            "phase": phase,
            "hostIP": HOST,
            "podIP": self._address,
            "podIPs": [{"ip": self._address}],
            "startTime": self._started,
            "conditions": [{"type": name, "status": yes_or_no[value]} for name, value in conditions.items()],
            "containerStatuses": [
                {
                    "name": self._container["name"],
                    "image": self._container["image"],
                    "imageID": "",
                    "ready": ready,
                    "started": started,
                    "restartCount": self._restarts,
                    "state": state,
                    "lastState": self._last,
                }
            ],
        }
        if status != self._status:
            self._api.patch("pods", self.namespace, self.name, "status", body={"status": status})
            self._status = status


def _make_node(api: Api, name: str) -> None:
    resources = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "1000Gi"}
    api.create("nodes", None, {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "spec": {}})
    status = {
        "capacity": resources,
        "allocatable": resources,
        "conditions": [{"type": "Ready", "status": "True", "reason": "Here", "message": "a stand-in"}],
        "addresses": [{"type": "InternalIP", "address": HOST}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": LOG_PORT}},
    }
    api.patch("nodes", None, name, "status", body={"status": status})
    # Every node begins with a taint, which the controller of nodes' lives would take away.
    api.patch("nodes", None, name, body={"spec": {"taints": None}})


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

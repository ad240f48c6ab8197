"""Every shape in ci/, where Pod Security "restricted" is enforced: install, test, upgrade, roll back, remove."""

from __future__ import annotations

import http.client
import json
import threading
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import yaml

from tests.chart.tools import CHART
from tests.live.api import Object
from tests.live.needs import needs_of
from tests.live.network import Network
from tests.live.probes import status_of
from tests.live.story import Story, confirm, tell, wait_until

RELEASE: Final = "trimtab"
LIGHT: Final = {
    # Two queries of three executors with 4 GB each would ask much of this machine: one small executor each.
    "queries": ["queryDefaults.executors.instances=1", "queryDefaults.executors.memory=1g"],
}
NEVER_READY: Final = {
    # An object store is not here: the driver of `clicks` fails and is started again, so helm cannot wait for it.
    "queries",
}


def one_shape(path: Path, story: Story, network: Network, scratch: Path) -> None:
    shape = path.name.removesuffix("-values.yaml")
    namespace = f"shape-{shape}"
    comments = [line.lstrip("# ") for line in path.read_text().splitlines() if line.startswith("#")]
    story.title(f"shape {shape}: {next(line for line in comments if not line.startswith('api-versions'))}")
    make_namespace(story, namespace)
    network.aliases["redis.example.com"] = "redis.elsewhere.svc.cluster.local"
    for text in needs_of(shape, namespace, scratch):
        story.apply(text)
    before = contents(story, namespace)
    values = ["-f", str(path), *(part for each in LIGHT.get(shape, []) for part in ("--set", each))]
    wait = [] if shape in NEVER_READY else ["--wait", "--timeout", "20m"]
    within = ["--namespace", namespace]
    story.helm("install", RELEASE, str(CHART), *within, *values, *wait)
    story.kubectl(*within, "rollout", "status", f"deployment/{RELEASE}", "--timeout=20m")
    story.kubectl(*within, "get", "pods,services,persistentvolumeclaims", "-o", "wide")
    if shape == "queries":
        queries_run(story, namespace)
    if shape == "spark-operator":
        story.kubectl(*within, "get", "sparkapplications.sparkoperator.k8s.io")
    if shape == "monitoring":
        story.kubectl(*within, "get", "servicemonitors,prometheusrules")
    settings = yaml.safe_load(path.read_text()) or {}
    tested = settings.get("tests", {}).get("enabled", True)
    if tested:
        story.helm("test", RELEASE, *within, "--logs")
    secrets = secrets_of(story, namespace)
    with Asking(url_of(story, namespace)) as asking:
        story.helm(
            *("upgrade", RELEASE, str(CHART), *within, *values, *wait),
            *("--set-string", "manager.podAnnotations.revision=2", "--set", "manager.accessLog=true"),
        )
        story.kubectl(*within, "rollout", "status", f"deployment/{RELEASE}", "--timeout=20m")
        confirm("the upgrade has kept keys and passwords", secrets_of(story, namespace) == secrets)
        story.helm("rollback", RELEASE, "1", *within, *wait)
        story.kubectl(*within, "rollout", "status", f"deployment/{RELEASE}", "--timeout=20m")
        confirm("so has the way back", secrets_of(story, namespace) == secrets)
    several = int(settings.get("manager", {}).get("replicaCount", 2)) > 1
    fact = f"{asking.answered} requests through the Service meanwhile, {asking.failed} of them without an answer"
    confirm(fact, asking.answered > 0 and (asking.failed == 0 or not several))
    story.helm("history", RELEASE, *within)
    if tested:
        story.helm("test", RELEASE, *within)
    removed(story, namespace, before)


def removed(story: Story, namespace: str, before: set[str]) -> None:
    """Uninstall, and see what is left."""
    story.helm("uninstall", RELEASE, "--namespace", namespace, "--wait")
    left: set[str] = set()

    def only_claims() -> bool:
        nonlocal left
        left = contents(story, namespace) - before
        return all(each.startswith("PersistentVolumeClaim/") for each in left)

    wait_until("uninstall leaves nothing but claims", only_claims)
    tell(f"      kept on purpose: {', '.join(sorted(left)) or 'nothing'}")
    story.kubectl("delete", "namespace", namespace, "--wait=true", "--timeout=20m")


def queries_run(story: Story, namespace: str) -> None:
    """The driver with a checkpoint on a volume gets its executor; the one in an object store says what it lacks."""
    within = ["--namespace", namespace]
    driver = story.kubectl(*within, "get", "statefulsets", "-o", "name", shown=False).split()
    name = next(each for each in driver if "orders-v2" in each).removeprefix(f"statefulset.apps/{RELEASE}-")
    executor = f"app.kubernetes.io/component=executor,trimtab.io/query={name}"

    def phases() -> list[str]:
        found = json.loads(story.kubectl(*within, "get", "pods", "-l", executor, "-o", "json", shown=False))
        return [pod["status"]["phase"] for pod in found["items"]]

    def clicks() -> str:
        return story.kubectl(*within, "logs", f"{RELEASE}-clicks-0", "--tail=1", shown=False, tried=True)

    wait_until("Spark's scheduler has made an executor of Orders_v2, and it runs", lambda: phases() == ["Running"])
    story.kubectl(*within, "get", "pods,persistentvolumeclaims", "-l", "app.kubernetes.io/component=executor")
    batch = "a batch of Orders_v2 is committed"
    log = f"{RELEASE}-{name}-0"
    wait_until(batch, lambda: "watermark" in story.kubectl(*within, "logs", log, shown=False, tried=True))
    story.kubectl(*within, "logs", log, "--tail=4")
    wait_until(
        "the driver of clicks names its checkpoint", lambda: "checkpoint = 's3a://checkpoints/clicks'" in clicks()
    )
    story.kubectl(*within, "logs", f"{RELEASE}-clicks-0", "--tail=1")


def make_namespace(story: Story, namespace: str) -> None:
    """One that enforces "restricted", with what controllers put into every namespace a moment later."""
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    meta = {"name": namespace, "labels": labels}
    story.apply(yaml.safe_dump({"apiVersion": "v1", "kind": "Namespace", "metadata": meta}))
    usual = {"ServiceAccount/default", "ConfigMap/kube-root-ca.crt"}
    wait_until(f"the namespace {namespace} is made", lambda: usual <= contents(story, namespace))


def contents(story: Story, namespace: str) -> set[str]:
    """Everything in a namespace, of whatever kind. Events only tell."""
    kinds = story.kubectl("api-resources", "--namespaced", "--verbs=list", "-o", "name", shown=False).split()
    kinds = [kind for kind in kinds if not kind.startswith("events")]
    found = json.loads(story.kubectl("--namespace", namespace, "get", ",".join(kinds), "-o", "json", shown=False))
    return {f"{each['kind']}/{each['metadata']['name']}" for each in found["items"] if each["kind"] != "PodMetrics"}


def secrets_of(story: Story, namespace: str) -> dict[str, Object]:
    found = json.loads(story.kubectl("--namespace", namespace, "get", "secrets", "-o", "json", shown=False))
    return {each["metadata"]["name"]: each["data"] for each in found["items"] if not each["type"].startswith("helm.sh")}


def url_of(story: Story, namespace: str) -> str:
    query = [
        "--namespace",
        namespace,
        "get",
        "service",
        RELEASE,
        "-o",
        "jsonpath={.spec.clusterIP}:{.spec.ports[0].port}",
    ]
    volumes = "jsonpath={.spec.template.spec.volumes[*].name}"
    secure = (
        "tls"
        in story.kubectl(*("--namespace", namespace, "get", "deployment", RELEASE, "-o", volumes), shown=False).split()
    )
    return f"{'https' if secure else 'http'}://{story.kubectl(*query, shown=False)}"


class Asking:
    """Asks the API through its Service, four times a second, each time over a connection of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.answered = 0
        self.failed = 0

    def __enter__(self) -> Asking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=15)

    def _status(self) -> int:
        to = urlsplit(self._url)
        assert to.hostname is not None and to.port is not None
        return status_of(to.hostname, to.port, "/readyz", secure=to.scheme == "https", timeout=10)

    def _run(self) -> None:
        while not self._stop.wait(0.25):
            try:
                # A question of whether it answers: who it is was asked by helm test.
                good = self._status() == 200
            except (OSError, http.client.HTTPException) as error:
                good = False
                tell(f"      {time.strftime('%H:%M:%S')} {type(error).__name__}: {error}")
            self.answered += good
            self.failed += not good

"""A query on the cluster: Spark's own scheduler makes its executors, its load is moved through the Service, and the
result is compared with plain Python."""

from __future__ import annotations

import datetime
import json
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any, Final

import httpx

from commands.demo.oracle import committed_files
from tests.chart.tools import CHART
from tests.checkers.multiset import Multiset, frozen
from tests.checkers.oracle import Condition, Oracle, recorded
from tests.live.api import Object
from tests.live.needs import claim
from tests.live.shapes import RELEASE, Asking, contents, make_namespace, removed, secrets_of
from tests.live.story import Story, confirm, tell, wait_until

NAMESPACE: Final = "streams"
URL: Final = f"http://{RELEASE}.{NAMESPACE}.svc:8765"
EXECUTOR: Final = "app.kubernetes.io/component=executor"
WITHIN: Final = ("--namespace", NAMESPACE)
START: Final = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class Feed:
    """Two streams as files on the shared volume: a file of each a second, a second of event time in each."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._random = random.Random(10)
        self._second = 0
        self._stop = threading.Event()
        self.files: dict[str, dict[str, list[Object]]] = {"A": {}, "B": {}}
        for stream in self.files:
            (directory / "in" / stream).mkdir(parents=True)
        self.write()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def write(self) -> None:
        for stream, files in self.files.items():
            name = f"{self._second:05}.json"
            rows = [self._row() for _ in range(25)]
            files[f"{stream}/{name}"] = rows
            text = "".join(f"{json.dumps(row | {'at': row['at'].isoformat()})}\n" for row in rows)
            part = self._directory / "in" / f".{stream}-{name}"
            part.write_text(text)
            part.rename(self._directory / "in" / stream / name)
        self._second += 1

    def _row(self) -> Object:
        at = START + datetime.timedelta(seconds=self._second, milliseconds=self._random.randrange(1000))
        return {"user": self._random.randrange(40), "price": float(self._random.randrange(100)), "at": at}

    def _run(self) -> None:
        while not self._stop.wait(1):
            self.write()


def the_query(story: Story) -> None:
    story.title("a query: driver in client mode, executors by Spark's own scheduler, moved through the Service")
    make_namespace(story, NAMESPACE)
    story.apply(claim(NAMESPACE, "orders"))
    before = contents(story, NAMESPACE)
    directory = claimed(story, "orders")
    feed = Feed(directory)
    values = ("-f", str(Path(__file__).with_name("query-values.yaml")))
    story.helm("install", RELEASE, str(CHART), *WITHIN, *values, "--wait", "--timeout", "20m")
    wait_until("two executors of the query run", lambda: phases(story) == ["Running", "Running"])
    story.kubectl(*WITHIN, "get", "pods", "-o", "wide")
    story.kubectl(*WITHIN, "get", "persistentvolumeclaims")
    feed.start()
    key = story.secret(NAMESPACE, f"{RELEASE}-keys", "admin").split("key: ")[1].strip()
    environ = {"TRIMTAB_URL": URL, "TRIMTAB_KEY": key, "TRIMTAB_QUERY": "orders"}
    with httpx.Client(base_url=URL, headers={"Authorization": f"Bearer {key}"}, timeout=30) as http:
        wait_until("the query has reported through Redis, and has a leader", lambda: leader_of(http) != "")
        wait_until("every worker has been measured", lambda: measured(http))
        story.trimtab("queries", environ=environ)
        story.trimtab("workers", environ=environ)
        story.trimtab("rebalance", "--from", "0", "--to", "3", "--amount", "50%", "--strategy", "mslb", environ=environ)
        story.trimtab("workers", environ=environ)
        managers(story, http)
        story.trimtab("rebalance", "--from", "1", "--to", "3", "--amount", "50%", "--strategy", "ptlb", environ=environ)
        executor_lost(story, http)
        release_changed(story, http, values)
        story.trimtab("drain", "--worker", "0", environ=environ)
        story.trimtab("workers", environ=environ)
        story.trimtab("migrations", environ=environ)
        feed.stop()
        result_is_right(feed, directory)
        story.kubectl(*WITHIN, "logs", f"{RELEASE}-orders-0", "--tail=4")
    removed(story, NAMESPACE, before)


def claimed(story: Story, name: str) -> Path:
    """The directory that stands in for the claim's volume."""
    wait_until(f"the claim {name} is bound", lambda: _volume(story, name) != "")
    path = "jsonpath={.spec.hostPath.path}"
    return Path(story.kubectl("get", "persistentvolume", _volume(story, name), "-o", path, shown=False))


def _volume(story: Story, name: str) -> str:
    template = "jsonpath={.spec.volumeName}"
    return story.kubectl(*WITHIN, "get", "persistentvolumeclaim", name, "-o", template, shown=False)


def phases(story: Story, selector: str = EXECUTOR) -> list[str]:
    found = json.loads(story.kubectl(*WITHIN, "get", "pods", "-l", selector, "-o", "json", shown=False))
    return [pod["status"]["phase"] for pod in found["items"] if "deletionTimestamp" not in pod["metadata"]]


def query(http: httpx.Client) -> Object:
    return _asked(http, "/v1/queries/orders")


def _asked(http: httpx.Client, path: str) -> Object:
    """Nothing where there is no answer yet."""
    try:
        answer = http.get(path)
    except httpx.HTTPError:
        return {}
    return dict(answer.json()) if answer.status_code == 200 else {}


def leader_of(http: httpx.Client) -> str:
    return str((query(http).get("manager") or {}).get("leader", ""))


def batch_of(http: httpx.Client) -> int:
    """The newest batch that is committed."""
    return int(query(http).get("committed_batch") or 0)


def measured(http: httpx.Client) -> bool:
    workers = _asked(http, "/v1/queries/orders/workers").get("workers", [])
    return len(workers) == 4 and all(worker["cpu_ms_per_s"] is not None for worker in workers)


def managers(story: Story, http: httpx.Client) -> None:
    """Two managers, one leads; the other leads when that one is gone."""
    leader = leader_of(http)
    pods = story.kubectl(*WITHIN, "get", "pods", "-l", "app.kubernetes.io/component=manager", "-o", "name").split()
    named = [pod for pod in pods if pod.removeprefix("pod/") in leader]
    confirm(f"there are two managers, and one of them leads the query: {leader}", len(pods) == 2 and len(named) == 1)
    with Asking(URL) as asking:
        story.kubectl(*WITHIN, "delete", named[0])
        wait_until("another manager leads", lambda: leader_of(http) not in ("", leader))
        story.kubectl(*WITHIN, "rollout", "status", f"deployment/{RELEASE}", "--timeout=20m")
    fact = f"{asking.answered} requests through the Service meanwhile, {asking.failed} of them without an answer"
    confirm(fact, asking.failed == 0)


def executor_lost(story: Story, http: httpx.Client) -> None:
    """Spark's scheduler makes another executor in place of one that is deleted, and the query goes on."""
    names = story.kubectl(*WITHIN, "get", "pods", "-l", EXECUTOR, "-o", "name").split()
    story.kubectl(*WITHIN, "delete", names[0], "--grace-period=1")
    batch = batch_of(http)
    wait_until("there are two executors again", lambda: phases(story) == ["Running", "Running"])
    wait_until("the query has gone on", lambda: batch_of(http) > batch + 3)


def release_changed(story: Story, http: httpx.Client, values: tuple[str, ...]) -> None:
    """Upgrade and rollback while the query runs: its driver is not touched."""
    path = "jsonpath={.metadata.uid} {.status.containerStatuses[0].restartCount}"
    driver = story.kubectl(*WITHIN, "get", "pod", f"{RELEASE}-orders-0", "-o", path, shown=False)
    secrets = secrets_of(story, NAMESPACE)
    wait = ("--wait", "--timeout", "20m")
    with Asking(URL) as asking:
        changed = ("--set-string", "manager.podAnnotations.revision=2")
        story.helm("upgrade", RELEASE, str(CHART), *WITHIN, *values, *changed, *wait)
        story.helm("rollback", RELEASE, "1", *WITHIN, *wait)
    fact = f"{asking.answered} requests through the Service meanwhile, {asking.failed} of them without an answer"
    confirm(fact, asking.failed == 0)
    now = story.kubectl(*WITHIN, "get", "pod", f"{RELEASE}-orders-0", "-o", path, shown=False)
    confirm("keys and passwords are the same", secrets_of(story, NAMESPACE) == secrets)
    confirm("the driver is the same process as before", now == driver)
    batch = batch_of(http)
    wait_until("the query has gone on", lambda: batch_of(http) > batch + 2)


def result_is_right(feed: Feed, directory: Path) -> None:
    checkpoint = directory / "orders"
    everything = {name for files in feed.files.values() for name in files}
    wait_until("the query has read every file", lambda: everything <= recorded(checkpoint).batch_of.keys())
    dear = Condition("A.price < B.price", ("A", "B"), lambda row: bool(row["A"]["price"] < row["B"]["price"]))
    columns = ("user", "price", "at")
    oracle = Oracle(
        window_us=10_000_000,
        keys={"A": ("user",), "B": ("user",)},
        times={"A": "at", "B": "at"},
        columns={"A": columns, "B": columns},
        conditions=(dear,),
    )
    last = max(recorded(checkpoint).batch_of.values())
    wait_until(f"batch {last} is committed", lambda: (checkpoint / "commits" / str(last)).exists())
    expected = oracle.expected(feed.files, recorded(checkpoint))
    found = _rows(directory / "out", oracle.result_columns)
    tell(
        f"      {sum(len(rows) for files in feed.files.values() for rows in files.values())} rows in {last + 1} batches"
    )
    fact = f"{found.total()} results, {(expected - found).total()} missing, {(found - expected).total()} too many"
    confirm(fact, found == expected and found.total() > 0)


def _rows(directory: Path, columns: list[str]) -> Multiset:
    counted: Multiset = Counter()
    for path in committed_files(directory):
        for line in (directory / path.name).read_text().splitlines():
            row = json.loads(line)
            counted[tuple(frozen(_typed(name, row[name])) for name in columns)] += 1
    return counted


def _typed(name: str, value: Any) -> Any:
    return datetime.datetime.fromisoformat(value) if name.endswith("_at") else value

"""Real promtool and real Prometheus: clean metrics, sound rules, and every panel of the dashboard has data.

The run that is scraped is a three-way join on two executor processes, fed by a source with a backlog, whose groups a
manager moves by both protocols while Prometheus looks.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest
import yaml

from api.embedded import EmbeddedServer
from manager.metrics import FAMILIES
from manager.settings import ManagerSettings
from tests.checkers import topic
from tests.checkers.harness import poll
from tests.checkers.scraped import Scraped
from tests.checkers.served import Served, until
from tests.checkers.sessions import make_session
from tests.outside.prometheus import ROOT, RULES, Prometheus, scraping
from tests.outside.tools import tool
from tests.simulation.data_plane import DataPlane
from trimtab import JoinQuery, Stream
from trimtab.embedded import EmbeddedRedis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NAME: Final = "orders"
BASE: Final = f"/v1/queries/{NAME}"
PATIENT: Final = ManagerSettings(lease_ttl_s=60.0, lease_renew_s=5.0, snapshot_s=0.5)
"""The machine may be busy, and a change of leader would be another test's subject."""
DEADLINE_S: Final = 900.0
RATE: Final = "2m"
"""For $__rate_interval: batches may be slow here."""
BOARD: Final[dict[str, Any]] = json.loads((ROOT / "deploy" / "grafana" / "trimtab.json").read_text(encoding="utf-8"))


def promtool(*arguments: str, text: str = "") -> str:
    done = subprocess.run(
        [tool("promtool"), *arguments], input=text, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_rules_are_sound() -> None:
    assert "FAILED" not in promtool("check", "rules", str(RULES / "recording.yml"), str(RULES / "alerts.yml"))


@pytest.mark.parametrize("file", sorted((RULES / "tests").glob("*.yml")), ids=lambda path: str(path.stem))
def test_alerts_fire_when_they_should_and_only_then(file: Path) -> None:
    assert "SUCCESS" in promtool("test", "rules", str(file))


@pytest.mark.redis
def test_metrics_are_clean() -> None:
    with EmbeddedRedis() as server:
        plane = DataPlane(server.url)
        plane.step()
        with Served(server.url, manager=True) as served:
            client = served.client("read")
            until(lambda: Scraped(client.get("/metrics").text).sum("trimtab_worker_rows_total") > 0, plane)
            assert promtool("check", "metrics", text=client.get("/metrics").text) == ""


# -- a real run


@dataclass
class WatchedRun:
    prometheus: Prometheus
    client: httpx.Client
    query: StreamingQuery

    def workers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client.get(f"{BASE}/workers").json()["workers"]
        return found

    def move(self, strategy: str, sender: int, receiver: int) -> None:
        """Some groups, until it is committed."""
        groups = self.workers()[sender]["groups"][:2]
        body = {"from": sender, "to": receiver, "groups": groups, "strategy": strategy, "reason": "to be watched"}
        self._done("rebalances", body)

    def replan(self, strategy: str, worker: int, plan: str) -> None:
        """Another plan for a worker, until it has it."""
        self._done("replans", {"worker": worker, "plan": plan, "strategy": strategy, "reason": "to be watched"})

    def _done(self, what: str, body: dict[str, Any]) -> None:
        answer = self.client.post(f"{BASE}/{what}", json=body)
        assert answer.status_code == 202, answer.text
        where = answer.headers["Location"]

        def ended() -> dict[str, Any] | None:
            self.check()
            record: dict[str, Any] = self.client.get(where).json()
            return None if record["open"] else record

        record = poll(ended, f"the end of {body}", DEADLINE_S)
        assert record is not None and record["state"] == "committed", record

    def check(self) -> None:
        time.sleep(0.2)
        if not self.query.isActive:
            pytest.fail(f"the query has ended: {self.query.exception()}")  # whole: an assertion's message is cut


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    session = make_session("local-cluster[2,1,1024]", **{"spark.sql.warehouse.dir": warehouse})
    yield session
    session.stop()


def started(spark: SparkSession, redis_url: str, checkpoint: Path) -> StreamingQuery:
    spark.dataSource.register(topic.TopicSource)
    begun = str(time.time() - 120)
    options = {"topic": "rows", "rowspersecond": "100", "rowsperbatch": "300", "begun": begun, "seed": "1"}
    rows = spark.readStream.format(topic.NAME).options(**options).load()
    query = JoinQuery(
        name=NAME,
        streams=tuple(Stream(each, key="k", time="at") for each in "ABC"),
        window="2 seconds",
        lateness="1 second",
        partitions=16,
        workers=4,
    )
    joined = query.join(spark, dict.fromkeys("ABC", rows), checkpoint=str(checkpoint), redis=redis_url)
    writer = joined.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    return writer.start()


@pytest.fixture(scope="module")
def run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedRun]:
    """A query that has had a plan changed and been rebalanced by both protocols, and measured; it is still running."""
    with ExitStack() as stack:
        redis = stack.enter_context(EmbeddedRedis())
        query = started(spark, redis.url, tmp_path_factory.mktemp("checkpoint"))
        stack.callback(query.stop)
        server = stack.enter_context(EmbeddedServer(redis.url, manager=PATIENT))
        headers = {"Authorization": f"Bearer {server.key('operate', 'test')}"}
        client = stack.enter_context(httpx.Client(base_url=server.url, headers=headers, timeout=30))
        target = server.url.removeprefix("http://")
        directory = tmp_path_factory.mktemp("prometheus")
        watching = stack.enter_context(scraping(target, server.key("read", "prometheus"), directory))
        watched = WatchedRun(watching, client, query)

        def measured() -> bool:
            watched.check()
            answer = client.get(f"{BASE}/workers")
            return answer.status_code == 200 and all(each["up"] for each in answer.json()["workers"])

        poll(measured, "reports of all workers", DEADLINE_S)
        watched.replan("hybmig", 1, "((B C) A)")
        watched.move("mslb", 0, 1)
        watched.move("ptlb", 2, 3)

        def compared() -> bool:
            watched.check()
            return bool(watching.now('trimtab_rebalance_last_seconds{of="outcome"}'))

        poll(compared, "the load after the rebalances", DEADLINE_S)
        poll(lambda: watching.now("query:trimtab_worker_rows:rate5m > 0"), "the recording rules", DEADLINE_S)
        yield watched


def expressions() -> list[tuple[str, str]]:
    """Title and expression of every panel's every target, and of the annotations."""
    panels = [(panel["title"], target["expr"]) for panel in BOARD["panels"] for target in panel.get("targets", ())]
    return panels + [(each["name"], each["expr"]) for each in BOARD["annotations"]["list"]]


@pytest.mark.spark
def test_every_panel_has_data(run: WatchedRun) -> None:
    (query,) = (each["query"] for each in BOARD["templating"]["list"] if each["name"] == "query")
    assert query["query"] == "label_values(trimtab_query_up, query)"
    assert {each["query"] for each in run.prometheus.get("series", **{"match[]": "trimtab_query_up"})} == {NAME}
    empty = []
    for title, expression in expressions():
        filled = expression.replace("$query", NAME).replace("$__rate_interval", RATE)
        assert "$" not in filled, "a variable that is not filled in"
        if not run.prometheus.over_the_run(filled):
            empty.append(f"{title}: {filled}")
    assert not empty, "\n".join(empty)


@pytest.mark.spark
def test_everything_that_is_declared_is_exported(run: WatchedRun) -> None:
    declared = {sample for family in FAMILIES.values() for sample in family.sample_names}
    assert {name for name in run.prometheus.names() if name.startswith("trimtab_")} == declared


@pytest.mark.spark
def test_recording_rules_have_data_and_nothing_cries_wolf(run: WatchedRun) -> None:
    groups = yaml.safe_load((RULES / "recording.yml").read_text(encoding="utf-8"))["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        assert run.prometheus.over_the_run(rule["record"]), rule["record"]
    states = run.prometheus.get("rules", type="alert")["groups"]
    broken = [rule["name"] for group in states for rule in group["rules"] if rule["health"] == "err"]
    assert not broken, broken
    firing = {each["metric"]["alertname"] for each in run.prometheus.now('ALERTS{alertstate="firing"}')}
    assert not firing, firing


@pytest.mark.spark
def test_the_numbers_are_those_of_the_run(run: WatchedRun) -> None:
    """Two migrations, both committed, nothing lost; the scrape itself was counted, with its key."""

    def total(expression: str) -> float:
        return sum(float(each["value"][1]) for each in run.prometheus.now(expression))

    assert total('trimtab_migrations_total{outcome="committed"}') == 2
    assert total('trimtab_rebalances_total{by="operator",state="committed"}') == 2
    assert total('trimtab_replans_total{strategy="hybmig",outcome="committed"}') == 1
    assert total("trimtab_audit_problems_total") == 0
    assert total('trimtab_migration_bytes_total{side="packed"}') > 0
    assert total("trimtab_migration_duplicated_rows_total") > 0
    assert total("trimtab_query_source_backlog_rows") > 0
    assert total("trimtab_worker_late_rows_total") > 0
    assert total("trimtab_worker_bad_rows_total") > 0
    assert total('trimtab_api_requests_total{kind="read",status="2xx"}') > 10
    by_owner = {
        int(each["metric"]["worker"]): int(float(each["value"][1]))
        for each in run.prometheus.now("trimtab_worker_groups")
    }
    assert by_owner == {each["worker"]: len(each["groups"]) for each in run.workers()}


@pytest.mark.spark
def test_series_vanish_when_the_query_stops(run: WatchedRun) -> None:
    """Last: it ends the run. Within a minute, or three times the longest batch where that is longer."""
    longest = run.prometheus.now("max_over_time(trimtab_query_last_batch_duration_seconds[10m])")
    allowed_s = max(60.0, 3 * float(longest[0]["value"][1]) + 30)
    run.query.stop()

    def gone() -> bool:
        time.sleep(0.5)
        names = {name for name, _ in Scraped(run.client.get("/metrics").text).about(NAME)}
        return not names

    poll(gone, "the series of a query that has stopped are gone", allowed_s)
    page = Scraped(run.client.get("/metrics").text)
    assert page.value("trimtab_manager_leading", query=NAME) == 1

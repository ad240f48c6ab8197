"""What the manifests hold is what our programs read: the same files and variables, without a cluster.

The last test starts the chart's Valkey, manager and helm test as processes, with the configuration that they would get.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.key_files import KeyFiles
from commands.cli import build_parser
from commands.environment import settings
from commands.runner.job import load_job
from tests.chart.rules import contents, pods
from tests.chart.tools import CHART, ROOT, Manifest, copied_chart, named, of_kind, render
from tests.checkers.acl_server import acl_server
from trimtab import redis_access
from trimtab.embedded.redis_server import free_port

DEPLOY = ROOT / "deploy"


def secret(manifests: list[Manifest], name: str) -> dict[str, str]:
    return contents(named(manifests, "Secret", name))


def environment(container: Manifest) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"]}


def test_queries_are_files_that_trimtab_runs(shapes: dict[str, list[Manifest]], tmp_path: Path) -> None:
    loaded = {}
    for shape in ("queries", "spark-operator"):
        for each in of_kind(shapes[shape], "ConfigMap"):
            if "query.yaml" in each["data"]:
                path = tmp_path / "query.yaml"
                path.write_text(each["data"]["query.yaml"])
                job = load_job(path, {})
                loaded[f"{shape}/{job.query.name}"] = job
    orders, clicks, submitted = (loaded[name] for name in sorted(loaded))
    assert sorted(loaded) == ["queries/Orders_v2", "queries/clicks", "spark-operator/orders"]
    assert orders.redis == "redis://rel-trimtab-valkey.streams.svc:6379/0"
    assert orders.checkpoint == "file:///checkpoint/orders-v2-" + orders.checkpoint[-6:]
    assert clicks.checkpoint == "s3a://checkpoints/clicks"
    assert (orders.spark.master, submitted.spark.master) == ("k8s://https://kubernetes.default.svc:443", None)
    config = orders.spark.config
    assert config["spark.executor.instances"] == "3"
    assert config["spark.kubernetes.driver.pod.name"] == f"{config['spark.kubernetes.executor.podNamePrefix']}-0"
    assert config["spark.driver.host"] == f"{config['spark.kubernetes.executor.podNamePrefix']}.streams.svc"
    assert config["spark.authenticate"] == config["spark.network.crypto.enabled"] == "true"
    volume = "spark.kubernetes.executor.volumes.persistentVolumeClaim.spark-local-dir-1.options"
    assert (config[f"{volume}.sizeLimit"], config[f"{volume}.storageClass"]) == ("100Gi", "fast")
    assert clicks.spark.config["spark.hadoop.fs.s3a.endpoint"] == "https://s3.example.com"
    assert not any("password" in name.lower() for name in config)


def test_numbers_reach_spark_as_they_were_written(tmp_path: Path) -> None:
    """helm reads numbers as floating point: 134217728 must not become 1.34217728e+08, which Spark refuses."""
    numbers = {"spark.sql.files.maxPartitionBytes": 134217728, "spark.x": 0.25, "spark.y": True, "spark.z": "0010"}
    written = {name: str(value).replace("True", "true") for name, value in numbers.items()}
    shape = CHART / "ci/spark-operator-values.yaml"
    (application,) = of_kind(
        render(tmp_path, shape, values={"queryDefaults": {"sparkConf": numbers}}), "SparkApplication"
    )
    assert {name: application["spec"]["sparkConf"][name] for name in numbers} == written
    manifests = render(tmp_path, CHART / "ci/queries-values.yaml", values={"queryDefaults": {"sparkConf": numbers}})
    files = [each["data"]["query.yaml"] for each in of_kind(manifests, "ConfigMap") if "query.yaml" in each["data"]]
    (tmp_path / "query.yaml").write_text(files[0])
    config = load_job(tmp_path / "query.yaml", {}).spark.config
    assert {name: config[name] for name in numbers} == numbers


def test_memory_of_a_driver_is_heap_and_overhead(shapes: dict[str, list[Manifest]]) -> None:
    limits = [
        pod["spec"]["containers"][0]["resources"]["limits"]["memory"]
        for name, pod in pods(shapes["queries"])
        if pod["spec"]["containers"][0]["name"] == "driver"
    ]
    assert limits == ["3072Mi", "4608Mi"]


def test_every_variable_is_one_that_we_read(shapes: dict[str, list[Manifest]]) -> None:
    known = {each.variable for each in settings(build_parser())}
    known |= {str(value) for name, value in vars(redis_access).items() if name.isupper()}
    for manifests in shapes.values():
        for name, pod in pods(manifests):
            for container in pod["spec"]["containers"]:
                ours = {each["name"] for each in container.get("env", []) if each["name"].startswith("TRIMTAB_")}
                assert ours <= known, name


def test_rules_and_dashboard_are_the_ones_that_exist(shapes: dict[str, list[Manifest]]) -> None:
    monitoring = shapes["monitoring"]
    rules = {each["metadata"]["name"]: each["spec"] for each in of_kind(monitoring, "PrometheusRule")}
    originals = {path.stem: path for path in (DEPLOY / "prometheus").glob("*.yml")}
    assert rules == {f"rel-trimtab-{name}": yaml.safe_load(path.read_text()) for name, path in originals.items()}
    dashboard = named(monitoring, "ConfigMap", "rel-trimtab-dashboard")
    assert json.loads(dashboard["data"]["trimtab.json"]) == json.loads((DEPLOY / "grafana/trimtab.json").read_text())
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_the_job_has_the_name_that_the_rules_know(shapes: dict[str, list[Manifest]]) -> None:
    """An alert on `up` for a job that nothing is called would fire for ever."""
    (monitor,) = of_kind(shapes["monitoring"], "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    services = [each["metadata"]["labels"] for each in of_kind(shapes["monitoring"], "Service")]
    (labels,) = (each for each in services if wanted.items() <= each.items())
    named_in_rules = {
        job
        for rule in of_kind(shapes["monitoring"], "PrometheusRule")
        for job in re.findall(r'job="([^"]*)"', json.dumps(rule["spec"]).replace('\\"', '"'))
    }
    assert {labels[monitor["spec"]["jobLabel"]]} == named_in_rules


def test_keys_are_files_that_the_server_reads(shapes: dict[str, list[Manifest]], tmp_path: Path) -> None:
    for name, text in secret(shapes["default"], "rel-trimtab-keys").items():
        (tmp_path / name).write_text(text)
    KeyFiles(tmp_path).check()
    assert sorted(os.listdir(tmp_path)) == ["admin", "reader"]


def test_a_key_that_is_taken_out_of_the_values_is_revoked(shapes: dict[str, list[Manifest]]) -> None:
    """What is taken out of `stringData` stays in the cluster: that field is written only, and never compared."""
    manifest = named(shapes["default"], "Secret", "rel-trimtab-keys")
    assert sorted(manifest["data"]) == ["admin", "reader"] and "stringData" not in manifest


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"scope: read\nkey: trimtab_{'1' * 12}_{'A' * 43}\n", f"scope: admin\nkey: trimtab_{'1' * 12}_{'A' * 43}\n"),
        ("# rotated\nid: 1\n scope : read\nhash: 2", "# rotated\nid: 1\nscope: admin\nhash: 2"),
    ],
)
def test_an_upgrade_keeps_a_key_whoever_rotated_it(tmp_path: Path, before: str, after: str) -> None:
    """Also where the Secret has only its hash, as `trimtab keys create --into` writes it."""
    chart = copied_chart(tmp_path)
    asked = f'{{{{ include "trimtab.keyFile" (list {json.dumps(before)} "admin") | toJson }}}}'
    (chart / "templates/probe.yaml").write_text(f"apiVersion: v1\nkind: Probe\nmetadata: {{name: x}}\ntext: {asked}\n")
    assert of_kind(render(tmp_path, chart=chart), "Probe")[0]["text"] == after


def test_only_the_own_role_is_mounted(shapes: dict[str, list[Manifest]]) -> None:
    """Whoever runs code on executors finds no password but the query's."""
    for name, pod in pods(shapes["queries"]):
        for volume in pod["spec"].get("volumes", []):
            if volume["name"] == "redis":
                mounted = [item["key"] for item in volume["secret"]["items"]]
                manager = name.startswith("Deployment")
                assert mounted == (["manager-password", "api-password"] if manager else ["query-password"]), name


def test_what_exists_is_kept_by_an_upgrade() -> None:
    """`lookup` finds nothing without a cluster: that templates use it is all that can be seen here."""
    for path in ("manager/keys.yaml", "valkey/secret.yaml", "queries/common.yaml"):
        assert 'lookup "v1" "Secret"' in (CHART / "templates" / path).read_text()


def placed(value: Any, places: Mapping[str, str]) -> Any:
    """With the paths of a container replaced by those of this test."""
    if isinstance(value, str):
        for path in sorted(places, key=len, reverse=True):
            value = value.replace(path, places[path])
    return value


@contextmanager
def process(command: list[str], environ: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as sink:
        running = subprocess.Popen(command, env=dict(environ), stdout=sink, stderr=subprocess.STDOUT)
    try:
        yield running
    finally:
        running.terminate()
        running.wait(timeout=30)


@pytest.mark.redis
def test_the_release_works_as_processes(tmp_path: Path) -> None:
    manifests = render(tmp_path)
    passwords = secret(manifests, "rel-trimtab-redis")
    for folder, files in (("redis", passwords), ("keys", secret(manifests, "rel-trimtab-keys"))):
        (tmp_path / folder).mkdir()
        for name, text in files.items():
            (tmp_path / folder / name).write_text(text)
    conf = named(manifests, "ConfigMap", "rel-trimtab-valkey")["data"]["valkey.conf"]
    options = dict(line.split(maxsplit=1) for line in conf.splitlines() if line.strip() and not line.startswith("#"))
    for path in ("dir", "aclfile", "port", "protected-mode"):
        del options[path]
    options["save"] = ""
    with acl_server(tmp_path, passwords["users.acl"], options) as valkey:
        port = free_port()
        places = {
            "/etc/trimtab/redis": str(tmp_path / "redis"),
            "/etc/trimtab/keys": str(tmp_path / "keys"),
            "/etc/trimtab/key/": f"{tmp_path / 'keys'}/",
            "redis://rel-trimtab-valkey.streams.svc:6379/0": valkey.url,
            "http://rel-trimtab.streams.svc:8765": f"http://127.0.0.1:{port}",
        }
        container = of_kind(manifests, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0]
        base = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
        environ = {**base, **{name: placed(value, places) for name, value in environment(container).items()}}
        environ |= {"TRIMTAB_SERVE_HOST": "127.0.0.1", "TRIMTAB_SERVE_PORT": str(port)}
        environ |= {"TRIMTAB_SERVE_METRICS_HOST": "127.0.0.1", "TRIMTAB_SERVE_METRICS_PORT": str(free_port())}
        _command(tmp_path / "bin", "trimtab", "-m", "commands.cli")
        _command(tmp_path / "bin", "python")
        test = of_kind(manifests, "Pod")[0]["spec"]["containers"][0]
        asking = {**base, **{name: placed(value, places) for name, value in environment(test).items()}}
        with process([str(tmp_path / "bin/trimtab"), *container["args"]], environ, tmp_path / "manager.log") as manager:
            deadline = time.monotonic() + 240
            while True:
                done = subprocess.run(test["command"], env=asking, capture_output=True, text=True, check=False)
                if done.returncode == 0 or time.monotonic() > deadline or manager.poll() is not None:
                    break
                time.sleep(0.3)
            said = (tmp_path / "manager.log").read_text()
            assert done.returncode == 0, done.stderr + said
            assert "Trimtab is ready, and the key reader works." in done.stdout
            assert '"status":"ready"' in done.stdout.replace(" ", "")
            for files in (passwords, secret(manifests, "rel-trimtab-keys")):
                for text in re.findall(r"[A-Za-z0-9]{40,}", " ".join(files.values())):
                    assert text not in said + done.stdout + done.stderr
        assert manager.returncode == 0


def _command(directory: Path, name: str, *arguments: str) -> None:
    """A program of that name, run by this Python."""
    directory.mkdir(exist_ok=True)
    text = " ".join(shlex.quote(part) for part in (sys.executable, *arguments))
    (directory / name).write_text(f'#!/bin/sh\nexec {text} "$@"\n')
    (directory / name).chmod(0o755)


def test_the_command_in_the_notes_gets_the_key(shapes: dict[str, list[Manifest]]) -> None:
    """`sed` finds the key in the file, as NOTES and docs say."""
    text = secret(shapes["default"], "rel-trimtab-keys")["admin"]
    sed = shutil.which("sed")
    assert sed is not None
    decoded = base64.b64decode(base64.b64encode(text.encode()))
    found = subprocess.run([sed, "-n", "s/^key: //p"], input=decoded, capture_output=True, check=True).stdout.decode()
    assert found.strip().startswith("trimtab_") and len(found.strip()) == 64


def test_values_file_is_the_documented_default() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["manager"]["replicaCount"] == 2
    assert values["networkPolicy"]["enabled"] and values["valkey"]["persistence"]["enabled"]

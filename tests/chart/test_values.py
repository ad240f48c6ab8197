"""What operators type: values that are refused by name, names of every kind, and the chart inside another one."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.rules import mounts, names, pods, restricted
from tests.chart.tools import CHART, Manifest, Refused, of_kind, render, run, tool

DEFINITION: dict[str, Any] = {
    "query": {
        "window": "1 minute",
        "lateness": "1 second",
        "streams": {name: {"key": "k", "time": "t", "source": {"format": "rate"}} for name in "AB"},
    },
    "sink": {"format": "console"},
}


def query(name: str = "orders", **more: Any) -> dict[str, Any]:
    return {"name": name, "definition": DEFINITION, "checkpoint": {"uri": f"s3a://bucket/{name}"}, **more}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"manager": {"replicaCount": "two"}}, "'/manager/replicaCount': got string, want integer"),
        ({"manager": {"replicaCount": 0}}, "'/manager/replicaCount': minimum"),
        ({"manager": {"replicaCont": 2}}, "'/manager': additional properties 'replicaCont' not allowed"),
        ({"managr": {}}, "additional properties 'managr' not allowed"),
        ({"externalRedis": {"url": "redis://r:6379/0"}}, "cannot be combined with valkey.enabled = true"),
        ({"valkey": {"enabled": False}}, "there is no Redis"),
        ({"valkey": {"enabled": False}, "externalRedis": {"url": "http://r"}}, "'/externalRedis/url'"),
        ({"keys": {"generate": {"admin": None, "reader": None}}}, "there would be no way in"),
        ({"keys": {"generate": {"admin": "root"}}}, "'/keys/generate/admin'"),
        ({"keys": {"generate": {"-x": "read"}}}, "'/keys/generate': additional properties '-x' not allowed"),
        ({"metrics": {"port": 8765}}, "metrics.port = 8765: the API has that port"),
        (
            {"commonLabels": {"app.kubernetes.io/name": "x"}},
            'commonLabels["app.kubernetes.io/name"]: is set by the chart',
        ),
        ({"manager": {"podLabels": {"helm.sh/chart": "x"}}}, 'manager.podLabels["helm.sh/chart"]: is set by the chart'),
        (
            {"manager": {"extraEnv": [{"name": "TRIMTAB_SERVE_PORT", "value": "1"}]}},
            "manager.extraEnv: TRIMTAB_SERVE_PORT is set by the chart",
        ),
        (
            {"queries": [query(extraEnv=[{"name": "TRIMTAB_REDIS", "value": "1"}])]},
            "queries[0].extraEnv (orders): TRIMTAB_REDIS is set by the chart",
        ),
        ({"manager": {"extraEnv": [{"name": "A"}, {"name": "A"}]}}, "manager.extraEnv: A is there twice"),
        ({"manager": {"extraEnv": [{"value": "1"}]}}, "'/manager/extraEnv/0': missing property 'name'"),
        (
            {"manager": {"extraEnv": [{"name": "A", "value": 1}]}},
            "'/manager/extraEnv/0/value': got number, want string",
        ),
        ({"manager": {"resources": {"limits": {"memroy": "1Gi"}}}}, "'/manager/resources/limits': additional"),
        ({"manager": {"resources": {"limits": {"memory": "1GB"}}}}, "'/manager/resources/limits/memory'"),
        (
            {"manager": {"podDisruptionBudget": {"maxUnavailable": "one"}}},
            "'/manager/podDisruptionBudget/maxUnavailable'",
        ),
        ({"manager": None}, "missing property 'manager'"),
        ({"valkey": {"persistence": None}}, "'/valkey': missing property 'persistence'"),
        ({"valkey": {"maxmemory": "0mb"}}, "'/valkey/maxmemory'"),
        ({"fullnameOverride": "-x"}, "'/fullnameOverride'"),
        ({"nameOverride": "___"}, "'/nameOverride'"),
        ({"image": {"registry": "https://ghcr.io"}}, "'/image/registry'"),
        ({"commonLabels": {"a b": "c"}}, "'/commonLabels': additional properties 'a b' not allowed"),
        ({"networkPolicy": {"apiServer": {"cidrs": ["any/0"]}}}, "'/networkPolicy/apiServer/cidrs/0'"),
        (
            {"externalRedis": {"existingSecret": "mine"}},
            'externalRedis.existingSecret = "mine": is for a Redis of your own',
        ),
        (
            {"valkey": {"enabled": False}, "externalRedis": {"url": "redis://r", "caSecret": "ca"}},
            'externalRedis.caSecret = "ca": has no meaning without TLS',
        ),
        (
            {"queries": [query(), query(name="clicks", checkpoint={"uri": "s3a://bucket/orders/"})]},
            'queries[1].checkpoint.uri = "s3a://bucket/orders/" (clicks): is the checkpoint of the query "orders", too',
        ),
        ({"tests": {"keyName": "nobody"}}, 'tests.keyName = "nobody": is not one of the keys'),
        ({"queries": [query(driver={"replicas": 2})]}, "'/queries/0/driver/replicas': value must be 1"),
        ({"queryDefaults": {"driver": {"replicas": 0}}}, "'/queryDefaults/driver/replicas': value must be 1"),
        ({"queries": [query(name="no/slash")]}, "'/queries/0/name'"),
        (
            {"queries": [query(extraVolumes=[{"name": "redis"}])]},
            "queries[0].extraVolumes (orders): redis is a volume of",
        ),
        ({"queries": [query(extraVolumeMounts=[{"name": "x"}])]}, "missing property 'mountPath'"),
        ({"queries": [query(), query()]}, 'queries[1].name = "orders": there are two queries of this name'),
        ({"queries": [query(checkpoint={})]}, "has 0 places. Give exactly one of uri"),
        ({"queries": [query(checkpoint={"uri": "s3a://x", "size": "1Gi"})]}, "has 2 places"),
        ({"queries": [query(checkpoint={"uri": "/tmp/x"})]}, "'/queries/0/checkpoint/uri'"),
        ({"queries": [query(executors={"memory": "4Gi"})]}, "'/queries/0/executors/memory'"),
        ({"queries": [query(definition={**DEFINITION, "redis": "redis://x"})]}, "definition.redis"),
        ({"queries": [query(definition={**DEFINITION, "spark": {"master": "local"}})]}, "definition.spark.master"),
        (
            {"queries": [query(definition={**DEFINITION, "query": {**DEFINITION["query"], "name": "other"}})]},
            'definition.query.name = "other": is not the query\'s name "orders"',
        ),
        ({"queries": [query(definition={"sink": {"format": "console"}})]}, "missing property 'query'"),
        ({"queries": [query(mode="sparkApplication")]}, "Install kubeflow's spark-operator, or use mode: driver"),
        ({"queries": [query(mode="cluster")]}, "'/queries/0/mode'"),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else "",
)
def test_bad_values_are_refused_by_name(values: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        render(tmp_path, values=values)
    assert words in str(caught.value).replace('\\"', '"')


@pytest.mark.parametrize(
    "release", ["r", "1st", "trimtab", "v1.2", "a-release-of-a-name-with-fifty-three-characters-in-all"[:53]]
)
def test_names_are_legal_whatever_things_are_called(release: str, tmp_path: Path) -> None:
    called = ["Orders_v2", "orders-v2", "orders.v2", "a" * 100, "9lives", "Z", "x_" * 20 + "y"]
    rendered = render(tmp_path, values={"queries": [query(name=each) for each in called]}, release=release)
    assert list(names(rendered)) == []
    drivers = [each for each in of_kind(rendered, "StatefulSet") if "valkey" not in each["metadata"]["name"]]
    assert len({each["metadata"]["name"] for each in drivers}) == len(called)
    # Spark refuses a longer prefix for the names of executors.
    assert max(len(each["metadata"]["name"]) for each in drivers) <= 47
    files = [each["data"]["query.yaml"] for each in of_kind(rendered, "ConfigMap") if "query.yaml" in each["data"]]
    assert sorted(yaml.safe_load(text)["query"]["name"] for text in files) == sorted(called)


def test_no_query_takes_the_name_of_something_else(tmp_path: Path) -> None:
    """A query called `valkey` once made a second StatefulSet of the name of Valkey's."""
    ours = {each["metadata"]["name"] for each in render(tmp_path, CHART / "ci/monitoring-values.yaml")}
    called = [name.removeprefix("rel-trimtab-") for name in ours if name != "rel-trimtab"]
    called += [
        f"{name}{end}" for name in ("a", "valkey") for end in ("", "-driver", "-executor", "-spark", "-checkpoint")
    ]
    queries = [query(name=each, checkpoint={"size": "1Gi"}) for each in dict.fromkeys(called)]
    assert list(names(render(tmp_path, CHART / "ci/monitoring-values.yaml", values={"queries": queries}))) == []


def test_it_can_be_a_subchart(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    (parent / "charts").mkdir(parents=True)
    (parent / "charts/trimtab").symlink_to(CHART)
    dependency = {"name": "trimtab", "version": "0.1.0", "condition": "trimtab.enabled"}
    meta = {"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": [dependency]}
    (parent / "Chart.yaml").write_text(yaml.safe_dump(meta))
    values = {
        "global": {"imageRegistry": "registry.example.com", "anything": {"else": 1}},
        "trimtab": {"enabled": True, "manager": {"replicaCount": 1}},
    }
    rendered = render(tmp_path, values=values, chart=parent)
    images = re.findall(r'"image": "([^"]*)"', json.dumps(rendered))
    assert images and all(image.startswith("registry.example.com/") for image in images)
    assert render(tmp_path, values={"trimtab": {"enabled": False}}, chart=parent) == []


def test_images_by_digest(tmp_path: Path) -> None:
    digest = f"sha256:{'0' * 64}"
    rendered = render(tmp_path, values={"image": {"registry": "ghcr.io", "digest": digest}})
    container = of_kind(rendered, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == f"ghcr.io/trimtab/manager@{digest}"


def test_a_query_with_an_image_of_its_own(tmp_path: Path) -> None:
    digest = f"sha256:{'0' * 64}"
    own = {"tag": "mine", "pullPolicy": "Always"}
    values = {"sparkImage": {"digest": digest}, "queries": [query(name="a"), query(name="b", image=own)]}
    a, b = (_driver(each) for each in of_kind(render(tmp_path, values=values), "StatefulSet")[:2])
    assert (a["image"], a["imagePullPolicy"]) == (f"trimtab/spark@{digest}", "IfNotPresent")
    assert (b["image"], b["imagePullPolicy"]) == ("trimtab/spark:mine", "Always")
    values = {"queryDefaults": {"image": {"repository": "other/spark"}}, "queries": [query()]}
    manifests = render(tmp_path, values=values)
    assert _driver(of_kind(manifests, "StatefulSet")[0])["image"] == "other/spark:0.1.0"
    files = [each["data"] for each in of_kind(manifests, "ConfigMap") if "query.yaml" in each["data"]]
    config = yaml.safe_load(files[0]["query.yaml"])["spark"]["config"]
    assert config["spark.kubernetes.container.image"] == "other/spark:0.1.0"
    assert config["spark.kubernetes.container.image.pullPolicy"] == "IfNotPresent"


def _driver(manifest: Manifest) -> Manifest:
    container: Manifest = manifest["spec"]["template"]["spec"]["containers"][0]
    assert container["name"] == "driver"
    return container


def test_files_and_identities_of_driver_and_executors(tmp_path: Path) -> None:
    """Certificates of Kafka have to lie where driver and executors look for them; a cloud knows service accounts."""
    more: dict[str, Any] = {
        "extraVolumes": [{"name": "kafka", "secret": {"secretName": "kafka-tls"}}],
        "extraVolumeMounts": [{"name": "kafka", "mountPath": "/run/secrets/kafka", "readOnly": True}],
        "serviceAccountAnnotations": {"example.com/role": "reader"},
    }
    for mode, count in (("driver", 2), ("sparkApplication", 2)):
        values = {"queryDefaults": more, "queries": [query(mode=mode)]}
        manifests = render(tmp_path, values=values, apis=["sparkoperator.k8s.io/v1beta2"])
        found = [pod for _, pod in pods(manifests) if "trimtab.io/query" in pod["metadata"]["labels"]]
        assert len(found) == count and not [*mounts(manifests), *restricted(manifests)]
        for pod in found:
            assert more["extraVolumes"][0] in pod["spec"]["volumes"]
            assert more["extraVolumeMounts"][0] in pod["spec"]["containers"][0]["volumeMounts"]
        accounts = [each["metadata"].get("annotations") for each in of_kind(manifests, "ServiceAccount")]
        assert accounts.count({"example.com/role": "reader"}) == 2


def test_managers_that_fill_all_nodes_can_be_replaced(tmp_path: Path) -> None:
    """With one manager on each node there is no room for another one: an upgrade would wait for ever."""
    found = []
    for affinity in ("soft", "hard"):
        manifests = render(tmp_path, values={"manager": {"antiAffinity": affinity}})
        found.append(of_kind(manifests, "Deployment")[0]["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"])
    assert found == [0, 1]


def test_a_rollback_replaces_a_pod_that_never_got_ready(tmp_path: Path) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#forced-rollback"""
    sets = of_kind(render(tmp_path, values={"queries": [query()]}), "StatefulSet")
    assert len(sets) == 2
    assert {each["spec"].get("podManagementPolicy") for each in sets} == {"Parallel"}


def test_notes_tell_the_next_three_commands(tmp_path: Path) -> None:
    install = [tool("helm"), "install", "rel", str(CHART), "--dry-run=client", "-n", "streams"]
    said = run(install, tmp_path)
    notes = said.partition("NOTES:")[2]
    assert [line.split()[0] for line in notes.splitlines() if line.startswith("  ")][:3] == [
        "kubectl",
        "kubectl",
        "TRIMTAB_KEY=$(kubectl",
    ]
    assert "get secret rel-trimtab-keys" in notes
    assert '{{ index .data "admin" | base64decode }}' in notes
    assert "Does it work? helm test rel" in notes
    without = run([*install, "--set", "tests.enabled=false"], tmp_path)
    assert "helm test" not in without


def test_every_value_is_commented() -> None:
    lines = (CHART / "values.yaml").read_text(encoding="utf-8").splitlines()
    bare = []
    for before, line in pairwise(lines):
        key = re.match(r" *([A-Za-z]+):", line)
        if key and not before.strip().startswith("#") and key[1] not in ("requests", "limits"):
            bare.append(line.strip())
    assert bare == []

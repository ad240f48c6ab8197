"""Every shape, by real tools: helm, Kubernetes' own schemas, and the rules of a careful operator."""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.chart.resources import RESOURCES
from tests.chart.rules import RULES, contents, pods
from tests.chart.tools import CHART, ROOT, SHAPES, Manifest, copied_chart, of_kind, render, run, tool, validator

SHAPE_NAMES = [path.name.removesuffix("-values.yaml") for path in SHAPES]


@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_NAMES)
def test_helm_lints_strictly(shape: Path, tmp_path: Path) -> None:
    said = run([tool("helm"), "lint", "--strict", str(CHART), "-f", str(shape)], tmp_path)
    assert "1 chart(s) linted, 0 chart(s) failed" in said


def test_kubernetes_takes_every_manifest(shapes: dict[str, list[Manifest]]) -> None:
    """All against the oldest and the newest version that the schemas have, one of each kind against all others."""
    kubernetes = validator()
    versions = kubernetes.utils.all_versions()
    assert versions[0].startswith("1.25.") and len(versions) >= 13
    distinct = {f"{each['kind']} {_form(each)}": each for manifests in shapes.values() for each in manifests}
    known = [each for each in distinct.values() if each["kind"] not in RESOURCES]
    largest = {each["kind"]: each for each in sorted(known, key=lambda it: len(json.dumps(it)))}
    for version in versions:
        for each in known if version in (versions[0], versions[-1]) else largest.values():
            kubernetes.validate(each, version, strict=True)
    templates = [(name, pod) for manifests in shapes.values() for name, pod in pods(manifests)]
    for name, pod in templates:
        if "executor" in name or "SparkApplication" in name:
            whole = {"apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"], "spec": pod["spec"]}
            kubernetes.validate(whole, versions[-1], strict=True)


def _form(value: Any) -> str:
    """Its fields without their texts: what two manifests of one form say is equally valid."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{_form(value[key])}' for key in sorted(value))}}}"
    if isinstance(value, list):
        return f"[{','.join(sorted({_form(each) for each in value}))}]"
    return type(value).__name__


def test_custom_resources_fit_their_definitions(shapes: dict[str, list[Manifest]]) -> None:
    jsonschema: Any = importlib.import_module("jsonschema")
    checked = set()
    for each in (each for manifests in shapes.values() for each in manifests):
        if each["kind"] in RESOURCES:
            jsonschema.validate(each, RESOURCES[each["kind"]])
            checked.add(each["kind"])
    assert checked == set(RESOURCES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rules(rule: Any, shapes: dict[str, list[Manifest]]) -> None:
    complaints = {name: list(rule(manifests)) for name, manifests in shapes.items()}
    assert {name: found for name, found in complaints.items() if found} == {}


def test_rules_find_what_they_are_for(tmp_path: Path) -> None:
    """Each rule complains about a manifest that is damaged for it."""
    damages: dict[str, tuple[str, str]] = {
        "restricted": ("runAsNonRoot: true\nrunAsUser", "runAsUser"),
        "tokens": ("automountServiceAccountToken: false", "automountServiceAccountToken: true"),
        "resources": ("emptyDir: {sizeLimit: 64Mi}", "emptyDir: {}"),
        "images": ('printf "%s:%s" $name ($image.tag | default $root.Chart.AppVersion)', 'printf "%s:latest" $name'),
        "probes": ("livenessProbe:", "startupProbe:"),
        "mounts": ("- name: tmp\n              mountPath: /tmp\n", ""),
        "names": ('name: {{ include "trimtab.fullname" . }}\n', "name: Trimtab_{{ .Release.Name }}\n"),
        "selectors": ("app.kubernetes.io/component: manager\nspec", "app.kubernetes.io/component: Manager\nspec"),
        "policies": ("-deny\n", "-deny\n"),
        "rights": ("verbs: [create", 'verbs: ["*", create'),
        "secrets": ("args: [serve]", 'args: [serve, "SECRETSECRETSECRETSECRETSECRETSECRET"]'),
    }
    queries = CHART / "ci/queries-values.yaml"
    sound = render(tmp_path, queries)
    assert {rule.__name__ for rule in RULES} == set(damages)
    for rule in RULES:
        if rule.__name__ in ("policies", "selectors", "secrets", "probes"):
            damaged = _damaged(rule.__name__, sound)
        else:
            chart = copied_chart(tmp_path / rule.__name__)
            old, new = damages[rule.__name__]
            changed = 0
            for path in sorted(chart.glob("templates/**/*.*")):
                text = path.read_text()
                if old in text:
                    path.write_text(text.replace(old, new))
                    changed += 1
            assert changed, rule.__name__
            damaged = render(tmp_path, queries, chart=chart)
        assert list(rule(damaged)), f"{rule.__name__} finds nothing"


def _damaged(name: str, manifests: list[Manifest]) -> list[Manifest]:
    copy: list[Manifest] = json.loads(json.dumps(manifests))
    for each in copy:
        spec = each.get("spec", {})
        if name == "policies" and each["metadata"]["name"].endswith("-deny"):
            spec["podSelector"]["matchLabels"]["app.kubernetes.io/component"] = "manager"
        elif name == "selectors" and each["kind"] == "PodDisruptionBudget":
            spec["selector"]["matchLabels"]["app.kubernetes.io/component"] = "menager"
        elif name == "secrets" and each["kind"] == "Secret":
            copy[0]["metadata"].setdefault("annotations", {})["x"] = next(iter(contents(each).values()))
        elif name == "probes" and each["kind"] == "Deployment":
            del spec["template"]["spec"]["containers"][0]["livenessProbe"]
    return copy


def test_kinds_that_the_cluster_does_not_have_are_left_out(tmp_path: Path) -> None:
    kinds = {each["kind"] for each in render(tmp_path)}
    assert not kinds & {"ServiceMonitor", "PrometheusRule", "SparkApplication"}
    kinds = {each["kind"] for each in render(tmp_path, apis=["monitoring.coreos.com/v1"])}
    assert "ServiceMonitor" in kinds


def test_rules_and_dashboard_are_copies() -> None:
    """The chart has copies of deploy/prometheus and deploy/grafana: helm packages its own directory only."""
    spec = importlib.util.spec_from_file_location("sync", ROOT / "deploy/helm/sync.py")
    assert spec is not None and spec.loader is not None
    sync = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sync)
    assert sync.differing() == [], "python deploy/helm/sync.py"


def test_a_new_chart_restarts_only_what_it_changes(tmp_path: Path) -> None:
    """A restart of Valkey or of a query has a price: a version in a label is no reason for one."""
    queries = CHART / "ci/queries-values.yaml"
    before = dict(pods(render(tmp_path, queries)))
    chart = copied_chart(tmp_path)
    meta = chart / "Chart.yaml"
    meta.write_text(meta.read_text().replace("\nversion: ", "\nversion: 9"))
    assert _changed(before, render(tmp_path, queries, chart=chart)) == []
    acl = chart / "files/users.acl"
    acl.write_text(acl.read_text().replace("+hello", "+hello +echo"))
    assert _changed(before, render(tmp_path, queries, chart=chart)) == ["StatefulSet/rel-trimtab-valkey"]
    more = {"valkey": {"maxmemory": "300mb"}}
    assert _changed(before, render(tmp_path, queries, values=more)) == ["StatefulSet/rel-trimtab-valkey"]


def test_a_changed_query_is_started_anew(tmp_path: Path) -> None:
    """In both modes. The operator looks at a SparkApplication's spec only."""
    for shape, kind in (("queries", "StatefulSet"), ("spark-operator", "SparkApplication")):
        path = tmp_path / f"{shape}.yaml"
        path.write_text((CHART / f"ci/{shape}-values.yaml").read_text().replace("10 minutes", "20 minutes"))
        before, after = (
            {each["metadata"]["name"]: each["spec"] for each in of_kind(render(tmp_path, one), kind)}
            for one in (CHART / f"ci/{shape}-values.yaml", path)
        )
        changed = [name for name, spec in before.items() if spec != after[name]]
        assert changed == [name for name in before if "valkey" not in name] != []


def _changed(before: dict[str, Manifest], manifests: list[Manifest]) -> list[str]:
    """The pods whose template differs; a test pod is made anew whenever it is asked for."""
    after = dict(pods(manifests))
    assert after.keys() == before.keys()
    return [name for name in before if before[name] != after[name] and not name.startswith("Pod/")]


def test_it_is_packaged_whole(tmp_path: Path) -> None:
    said = run([tool("helm"), "package", str(CHART), "--destination", str(tmp_path)], tmp_path)
    package = Path(said.strip().rpartition(" ")[2])
    assert render(tmp_path, chart=package)

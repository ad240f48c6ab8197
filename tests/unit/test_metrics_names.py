"""Names agree exactly, in both directions: code, rules and their tests, dashboard, documentation."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from manager import metrics_page
from manager.metrics import (
    ALARM_KINDS,
    API_BUCKETS,
    BATCH_BUCKETS,
    CODES,
    EVENT_KINDS,
    FAMILIES,
    GROUP_LOAD_BUCKETS,
    OTHER,
)

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARD = ROOT / "deploy" / "grafana" / "trimtab.json"
SAMPLES = {sample: family for family in FAMILIES.values() for sample in family.sample_names}
OF_THE_PROCESS = {"process_resident_memory_bytes", "process_cpu_seconds_total"}
"""Of prometheus-client's own collector."""
OF_PROMETHEUS = {"up"}


def rules(kind: str) -> list[dict[str, Any]]:
    files = sorted(PROMETHEUS.glob("*.yml"))
    groups = [group for file in files for group in yaml.safe_load(file.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_dashboard", DASHBOARD.with_name("make_dashboard.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_dashboard"] = module
    spec.loader.exec_module(module)
    return module


def dashboard_expressions() -> list[str]:
    board = json.loads(DASHBOARD.read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    found += [each["expr"] for each in board["annotations"]["list"]]
    variables = [each["definition"] for each in board["templating"]["list"] if each["type"] == "query"]
    return found + [re.sub(r"label_values\((\w+), \w+\)", r"\1", each) for each in variables]


RECORDED = {str(rule["record"]) for rule in rules("record")}
ALERTS = {str(rule["alert"]): rule for rule in rules("alert")}
_FUNCTIONS = re.compile(r"\b(by|on|group_left|group_right|ignoring|without)\s*\([^)]*\)")
_WORDS = re.compile(r"(?<![\w:$\"])([a-zA-Z_:][\w:]*)(?![\w:]|\s*\()")
_KEYWORDS = {"and", "or", "unless", "by", "on", "offset", "bool", "group_left"}


def metrics_in(expression: str) -> set[str]:
    """Names of metrics in an expression: neither functions nor labels nor what stands in quotes."""
    plain = re.sub(r'"[^"]*"', '""', expression)
    plain = re.sub(r"\[[^\]]*\]", "", plain)
    plain = re.sub(r"\{[^}]*\}", "", _FUNCTIONS.sub("", plain))
    return {word for word in _WORDS.findall(plain) if word not in _KEYWORDS and not re.fullmatch(r"\d+\w*", word)}


def labels_in(expression: str) -> set[tuple[str, str]]:
    """(metric, label) of every selector."""
    found = re.findall(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}", expression)
    return {(name, label) for name, inside in found for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside)}


def known(name: str) -> bool:
    return name in SAMPLES or name in RECORDED or name in OF_THE_PROCESS or name in OF_PROMETHEUS


def test_how_names_are_found() -> None:
    """What the tests below rest on."""
    text = 'max by (a, b) (rate(x_total{kind!="z", c="$query"}[5m] offset 10m)) / on (a) group_left () (y:z:w > 0.2)'
    assert metrics_in(text) == {"x_total", "y:z:w"}
    assert labels_in(text) == {("x_total", "kind"), ("x_total", "c")}


@pytest.mark.parametrize("expression", [str(rule["expr"]) for rule in (*rules("record"), *rules("alert"))])
def test_rules_use_what_is_exported(expression: str) -> None:
    names = metrics_in(expression)
    assert names and all(map(known, names)), names
    check_labels(expression)


@pytest.mark.parametrize("expression", dashboard_expressions())
def test_the_dashboard_uses_what_is_exported(expression: str) -> None:
    names = metrics_in(expression)
    assert names and all(map(known, names)), names
    assert not names & RECORDED, "it must work without the recording rules"
    check_labels(expression)


def check_labels(expression: str) -> None:
    for name, label in labels_in(expression):
        if name in SAMPLES:
            own = {*SAMPLES[name].all_labels, "instance", *(("le",) if name.endswith("_bucket") else ())}
            assert label in own, f"{name} has no label {label}"


def test_everything_that_is_exported_is_shown() -> None:
    """A metric that no panel shows is one that nobody looks at."""
    shown = {SAMPLES[name].name for text in dashboard_expressions() for name in metrics_in(text) if name in SAMPLES}
    assert set(FAMILIES) == shown


def test_the_dashboard_is_what_its_script_makes() -> None:
    assert DASHBOARD.read_text(encoding="utf-8") == maker().text(), "run: python deploy/grafana/make_dashboard.py"


def test_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells


def test_the_documentation_has_exactly_the_table() -> None:
    path = ROOT / "docs" / "metrics.md"
    page = path.read_text(encoding="utf-8")
    assert metrics_page.renewed(page) == page, "run: python -m manager.metrics_page docs/metrics.md"
    named = set(re.findall(r"`(trimtab_\w+)`", page))
    assert named <= set(SAMPLES) | set(FAMILIES), "prose names a metric that is not there"


def anchors(page: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_a_runbook_entry_and_two_cases(alert: str) -> None:
    rule = ALERTS[alert]
    path, _, anchor = str(rule["annotations"]["runbook_url"]).partition("#")
    page = (ROOT / path).read_text(encoding="utf-8")
    assert anchor == alert.lower() and anchor in anchors(page)
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    tests = yaml.safe_load((PROMETHEUS / "tests" / "alerts.yml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"] if case["alertname"] == alert]
    assert {bool(case["exp_alerts"]) for case in cases} == {True, False}, "one that fires and one that does not"


def test_the_runbook_has_no_entry_without_an_alert() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^### (Trimtab\w+)$", page, re.MULTILINE)) == set(ALERTS)


def test_the_cases_use_what_is_exported() -> None:
    for file in (PROMETHEUS / "tests").glob("*.yml"):
        for test in yaml.safe_load(file.read_text())["tests"]:
            for series in test["input_series"]:
                assert all(map(known, metrics_in(series["series"]))), series["series"]
                check_labels(series["series"])


def test_kinds_of_alarms_and_events_are_all_known() -> None:
    """A kind that is raised in the code and not in the table would be counted as "other"."""
    packages = ("balancing", "manager", "split_union")
    sources = [path.read_text(encoding="utf-8") for name in packages for path in (ROOT / name).rglob("*.py")]

    def named(pattern: str) -> set[str]:
        return {kind for source in sources for kind in re.findall(pattern, source)}

    alarms = named(r'alarm\((?:runner\.query, |self\._query, )?"([\w-]+)"') | named(r'_put_back\(start, "([\w-]+)"')
    events = named(r'Notice\(kind="([\w-]+)"') | named(r'[_ \[(][tT]ell\("([\w-]+)"')
    assert alarms | {"audit"} == set(ALARM_KINDS) - {OTHER}
    assert events - set(ALARM_KINDS) <= set(EVENT_KINDS) and {"step", "finished", "leader"} <= events


def test_buckets_rise() -> None:
    for buckets in (GROUP_LOAD_BUCKETS, BATCH_BUCKETS, API_BUCKETS):
        assert list(buckets) == sorted(set(buckets))
    assert "act" in CODES

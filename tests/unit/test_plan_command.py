"""`trimtab plan graph.yaml`: what it prints, and how it refuses."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands.cli import BAD_INPUT, main
from commands.runner.graph_file import read_graph
from commands.runner.plan import parse_bytes
from trimtab.errors import InvalidInput

GRAPH = """
window: 5 seconds
streams: {A: 20, B: {rate: 20, row_bytes: 50}, C: 20}
edges:
  - [A, B, 0.05]
  - [B, C, 0.5]
"""


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "graph.yaml"
    path.write_text(GRAPH, encoding="utf-8")
    return path


def test_the_plan_is_drawn_with_its_costs_and_what_was_not_taken(
    graph: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(graph), "--cpu", "1.0", "--memory", "300MB"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:9] == [
        "((A B) C)  (bjtree)",
        "((A B) C) has the least CPU of all plans that stay within the limits.",
        "",
        "join of A B C: results",
        "├── join of A B: kept, 500 rows, 19 kB",
        "│   ├── A  100 rows, 12.6 kB",
        "│   └── B  100 rows, 7.6 kB",
        "└── C  100 rows, 12.6 kB",
        "",
    ]
    assert lines[9].startswith("CPU     ") and "of 1.00 cores" in lines[9]
    assert lines[10] == "memory  51.8 kB of 300 MB (0%)"
    assert any(line.startswith("(A B C)") and "more CPU, though it saves 19 kB" in line for line in lines)


def test_json_says_the_same(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(graph), "--memory", "300MB", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["answer"] == body["chosen"]["kind"] == "bjtree"
    assert body["chosen"]["plan"] == "((A B) C)"
    assert body["limits"] == {"cpu": None, "memory_bytes": 3e8}
    assert {"streams": ["A", "B"], "rows": pytest.approx(500), "bytes": pytest.approx(19000)} in body["chosen"][
        "states"
    ]
    assert body["misses"] == []
    assert all(each["reason"] for each in body["rejected"])


def test_a_plan_that_runs_now_is_compared(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph.write_text(GRAPH + "plan: (A (B C))\n", encoding="utf-8")
    assert main(["plan", str(graph)]) == 0
    out = capsys.readouterr().out
    assert "Now runs (A (B C)):" in out and "The change saves" in out
    assert [line.split()[0] for line in out.splitlines() if line.startswith(("ms ", "pt ", "hybmig "))] == [
        "ms",
        "pt",
        "hybmig",
    ]
    graph.write_text(GRAPH + "plan: (C (B A))\n", encoding="utf-8")
    assert main(["plan", str(graph)]) == 0
    assert "((A B) C) runs already." in capsys.readouterr().out


def test_where_no_plan_qualifies_the_limit_and_what_is_missing_are_said(
    graph: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(graph), "--memory", "10kB"]) == BAD_INPUT
    output = capsys.readouterr()
    assert "needs 32.8 kB of memory, 22.8 kB (228%) over the limit" in output.out
    assert output.err == (
        "trimtab: --memory = '10kB': No plan qualifies: even the smallest, (A B C), needs 32.8 kB of memory, "
        "22.8 kB (228%) over the limit. Give --memory 0.04MB at least, or make the window shorter, "
        "or spread the load over more workers.\n"
    )
    assert main(["plan", str(graph), "--cpu", "0.000001", "--json"]) == BAD_INPUT
    assert json.loads(capsys.readouterr().out)["answer"] == "none"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--cpu", "0"], "--cpu = '0': is not positive"),
        (["--cpu", "-1"], "--cpu = '-1': is not positive"),
        (["--cpu", "many"], "--cpu = 'many': is not a number of cores"),
        (["--cpu", "nan"], "--cpu = 'nan': is not a number of cores"),
        (["--memory", "0MB"], "--memory = '0MB': is not positive"),
        (["--memory", "-3MB"], "--memory = '-3MB': is not positive"),
        (["--memory", "3 apples"], "--memory = '3 apples': is not a size"),
        (["--memory", "1.2.3"], "--memory = '1.2.3': is not a size"),
    ],
)
def test_limits_are_refused_by_name(
    graph: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(graph), *options]) == BAD_INPUT
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "field", "problem"),
    [
        (
            ("  - [B, C, 0.5]\n", ""),
            "edges",
            "do not connect C with A, B: their join is a cross product inside the key",
        ),
        (("[B, C, 0.5]", "[B, X, 0.5]"), "edges[1]", "names 'X', which is not a stream of this file"),
        (("[B, C, 0.5]", "[B, B, 0.5]"), "edges[1]", "joins B with itself"),
        (("[B, C, 0.5]", "[B, A, 0.5]"), "edges[1]", "joins B and A a second time"),
        (("[B, C, 0.5]", "[B, C]"), "edges[1]", "is not an edge"),
        (("[B, C, 0.5]", "[B, C, 0]"), "edges[1]", "has the selectivity 0"),
        (("[B, C, 0.5]", "[B, C, 1.5]"), "edges[1]", "has the selectivity 1.5"),
        (("A: 20", "A: -1"), "streams.A.rate", "is not a positive number"),
        (("A: 20", "A: {row_bytes: 4}"), "streams.A.rate", "is not a positive number"),
        (("A: 20", "A: {rate: 1, width: 4}"), "streams.A.width", "is not known"),
        (("{A: 20, B: {rate: 20, row_bytes: 50}, C: 20}", "{A: 20}"), "streams", "are 1"),
        (("window: 5 seconds", "window: 0 seconds"), "window", "is not positive"),
        (("window: 5 seconds", "window: 5"), "window", "is not a duration"),
        (("window: 5 seconds", "horizon: 5 seconds"), "horizon", "is not known"),
        (("window: 5 seconds\n", ""), "window", "is missing"),
        (("edges:", "plan: (A B)\nedges:"), "plan", "joins A, B"),
        (("edges:", "lateness: -1 seconds\nedges:"), "lateness", "is negative"),
        (("edges:", "costs_ns: {pear: 5}\nedges:"), "costs_ns.pear", "is not known"),
        (("edges:", "costs_ns: {pair: -5}\nedges:"), "costs_ns.pair", "is not a number of nanoseconds"),
        (("edges:", "batches_per_second: 0\nedges:"), "batches_per_second", "is not a positive number"),
        (("edges:", "conditions: [{streams: [A, Z], selectivity: 1}]\nedges:"), "conditions[0].streams", "names 'Z'"),
        (
            ("edges:", "conditions: [{streams: [A], selectivity: 1}]\nedges:"),
            "conditions[0].streams",
            "are fewer than two",
        ),
        (("edges:", "conditions: [A]\nedges:"), "conditions[0]", "is not a condition"),
    ],
)
def test_a_graph_is_refused_by_field(graph: Path, change: tuple[str, str], field: str, problem: str) -> None:
    assert change[0] in GRAPH
    graph.write_text(GRAPH.replace(*change), encoding="utf-8")
    with pytest.raises(InvalidInput) as refused:
        read_graph(graph)
    assert refused.value.field == field
    assert problem in refused.value.problem
    assert refused.value.remedy


def test_sizes_beyond_any_number_are_refused(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph.write_text(GRAPH.replace("A: 20", "A: 1.0e+300").replace("C: 20", "C: 1.0e+300"), encoding="utf-8")
    assert main(["plan", str(graph)]) == BAD_INPUT
    assert "make states larger than any number" in capsys.readouterr().err


def test_what_the_file_says_reaches_the_model(graph: Path) -> None:
    more = (
        "lateness: 2 seconds\nbatches_per_second: 0.5\ncosts_ns: {pair: 55, step: 0}\n"
        "conditions: [{streams: [A, C], selectivity: 0.3}]\n"
    )
    graph.write_text(GRAPH + more, encoding="utf-8")
    model = read_graph(graph).model
    assert (model.statistics.window_s, model.statistics.lateness_s, model.batches_per_s) == (5.0, 2.0, 0.5)
    assert model.statistics.row_bytes == (100.0, 50.0, 100.0)
    assert model.constants.pair_s == pytest.approx(55e-9) and model.constants.step_s == 0.0
    assert [each.selectivity for each in model.statistics.conditions] == [0.3]


def test_too_many_streams_for_the_exact_search_are_told(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"S{number}" for number in range(9)]
    edges = "".join(f"  - [{names[0]}, {name}, 0.01]\n" for name in names[1:])
    graph.write_text(
        f"window: 1 second\nstreams: {{{', '.join(f'{n}: 5' for n in names)}}}\nedges:\n{edges}", encoding="utf-8"
    )
    assert main(["plan", str(graph), "--method", "exact"]) == BAD_INPUT
    assert "--method = 'exact': takes up to 8 streams, and there are 9" in capsys.readouterr().err
    assert main(["plan", str(graph)]) == 0


def test_a_stream_named_like_markup_is_text(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph.write_text(GRAPH.replace("C", "'[red]'"), encoding="utf-8")
    assert main(["plan", str(graph)]) == 0
    assert "(A B [red])" in capsys.readouterr().out


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(Path(__file__).parents[2] / "examples" / "graph.yaml")]) == 0
    assert "The change saves" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "size"),
    [("300MB", 3e8), ("1.5 GiB", 1.5 * 2**30), ("2k", 2000), ("17", 17), ("1e3 B", 1000), ("1TB", 1e12)],
)
def test_sizes_are_read_with_their_units(text: str, size: float) -> None:
    assert parse_bytes(text, "memory") == size


@given(st.text(max_size=12))
@settings(max_examples=200, deadline=None)
def test_any_text_is_a_size_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidInput):
        assert math.isfinite(parse_bytes(text, "memory"))

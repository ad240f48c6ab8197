"""What `benchmarks.live` calls reached."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.live import Figures

GOOD = Figures(
    seconds=20.0,
    events=2,
    delays_ms=[10.0] * 200,
    deltas=5,
    connected=200,
    redis_connections=12,
    before_mb=80.0,
    after_mb=100.0,
    slow=0,
    cpu_share=0.2,
    clients_cpu_share=0.1,
)


def test_all_of_it_counts() -> None:
    assert GOOD.reached(200)
    assert not GOOD.reached(201), "a client was refused"
    assert not replace(GOOD, delays_ms=[10.0] * 199).reached(200), "an event is missing"
    assert not replace(GOOD, delays_ms=[10.0] * 190 + [300.0] * 10).reached(200), "too late"
    assert not replace(GOOD, after_mb=500.0).reached(200), "too large"
    assert any("99 % 10 ms" in line for line in GOOD.lines())

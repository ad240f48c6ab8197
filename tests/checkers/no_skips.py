"""Where TRIMTAB_NO_SKIPS is set, a test that is skipped has failed: nobody would run it.

A skip whose reason begins with `OTHER_PLATFORM` is one: there is nothing to test here.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any, Final

import pytest

NO_SKIPS: Final = "TRIMTAB_NO_SKIPS"
"""Set by .ci/run."""
OTHER_PLATFORM: Final = "another platform:"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    return _failed((yield), item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """A module may skip itself as a whole."""
    return _failed((yield), collector.nodeid)


def _failed(report: Any, name: str) -> Any:
    # What is expected to fail counts as skipped, too.
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get(NO_SKIPS):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not reason.removeprefix("Skipped: ").startswith(OTHER_PLATFORM):
            report.outcome = "failed"
            report.longrepr = f"{name} was skipped, and {NO_SKIPS} is set: {reason}"
    return report

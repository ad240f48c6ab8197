"""What all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.checkers.no_skips import pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401  # hooks
from trimtab.embedded.redis_server import EmbeddedRedis

# A property holds or it does not; how long a case takes on a loaded machine says nothing about it.
settings.register_profile("trimtab", deadline=None)
settings.load_profile("trimtab")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    """A real Redis-protocol server, empty at first, for the tests of one module."""
    with EmbeddedRedis() as running:
        yield running


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the traces of tests/scenarios anew")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--rewrite"))

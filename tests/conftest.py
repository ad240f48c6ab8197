"""What all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from trimtab.embedded.redis_server import EmbeddedRedis

# A property holds or it does not; how long a case takes on a loaded machine says nothing about it.
settings.register_profile("trimtab", deadline=None)
settings.load_profile("trimtab")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    """A real Redis-protocol server, empty at first, for the tests of one module."""
    with EmbeddedRedis() as running:
        yield running


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In two processes, tests on Spark stay in one of them: two clusters at a time are too many for two cores."""
    for item in items:
        if item.nodeid.startswith("tests/spark/"):
            item.add_marker(pytest.mark.xdist_group("spark"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the traces of tests/scenarios anew")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--rewrite"))

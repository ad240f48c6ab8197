"""Spark's refusals as mistakes in the file."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pyspark.errors import PySparkException

from commands.runner.failures import root_cause
from split_union.kafka.options import without_secrets
from trimtab.errors import InvalidInput

_Result = TypeVar("_Result")


def explained(
    field: str, value: object, remedy: str, make: Callable[[], _Result], secrets: tuple[str, ...] = ()
) -> _Result:
    """Run `make`; what Spark refuses while a plan is built is a mistake in the file. `secrets` are not repeated."""
    from py4j.protocol import Py4JJavaError

    try:
        return make()
    except (PySparkException, Py4JJavaError) as error:
        problem = without_secrets(" ".join(root_cause(error).split()).rstrip("."), secrets)
        raise InvalidInput(field, value, f"is refused by Spark: {problem}", remedy) from None

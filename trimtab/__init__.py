"""Trimtab: a partitioned load balancer for stateful stream joins on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["JoinQuery", "Stream", "__version__"]

if TYPE_CHECKING:
    from split_union.query import JoinQuery, Stream


def __getattr__(name: str) -> object:
    # Lazy, because executors import `trimtab.epochs` and the like without wanting pydantic and sqlglot.
    if name in ("JoinQuery", "Stream"):
        from split_union import query

        return getattr(query, name)
    raise AttributeError(f"module 'trimtab' has no attribute {name!r}")

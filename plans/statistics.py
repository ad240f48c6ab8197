"""What is known about streams, and the size of any state that follows from it.

All streams of a query share one key. Inside a key everything meets everything, so with r_X(k) rows per second of stream
X and key k, combinations of one row of each stream of a set S arise with the density

    D(S) = sum over keys k of the product of r_X(k) over X in S          (combinations per second^|S|)

A model with independent edges multiplies averages instead, and is wrong wherever keys are not equally frequent. For a
graph from a file there are no keys to count: there D(S) is the product of the rates and of the selectivities of the
edges inside S (JTree section 2.1), which is the same formula with one key.

Windows. Rows are live for W plus the lateness L, since the watermark runs L behind. A combination is made when its
newest row comes, if all its rows lie within W; it is live as long as its oldest row (docs/architecture.md, Time). For
m = |S| streams that gives, before conditions,

    flow(S) = D(S) W^(m-1)                per second and stream: combinations whose newest row is of that stream
    size(S) = D(S) W^(m-1) (W + m L)      live at a time; for L = 0 the sum over keys of the products of counts

The second is the integral over the age t of the oldest row: m D(S) min(t, W)^(m-1) from 0 to W + L. JTree's
|S_A| = λ_A W and |S_AB| = λ_A λ_B σ_AB W² (its section 2.3) are the case L = 0. MS/PT's λ_AB = 2 λ_A λ_B W σ_AB (eq 2)
is two flows; its states are twice ours (eq 8), because its purging lemma keeps a combination until its *newest* row is
a window old.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

TABLE_MAX: Final = 2**26
"""Products up to which the densities of all sets of streams are computed at once: 2^streams for each key."""
PRODUCTS_AT_ONCE: Final = 2**19
"""Bounds the memory that the table takes while it is computed, however many keys were sampled."""


@dataclass(frozen=True)
class Edge:
    """An equality between two streams that an index finds: of all pairs only this share is even looked at."""

    streams: frozenset[str]
    selectivity: float


@dataclass(frozen=True)
class Condition:
    """Evaluated on pairs that were found, as soon as all its streams are there."""

    streams: frozenset[str]
    selectivity: float


@dataclass(frozen=True, eq=False)
class Statistics:
    """Rates per key, edges and conditions. Sets of streams are bit masks: bit i stands for `streams[i]`."""

    streams: tuple[str, ...]
    window_s: float
    lateness_s: float
    rates: Floats
    """(streams, keys): rows per second."""
    weights: Floats
    """For how many keys each one stands: 64 for one that was sampled one in 64, 1 for a heavy one known exactly."""
    edges: tuple[Edge, ...] = ()
    conditions: tuple[Condition, ...] = ()
    row_bytes: tuple[float, ...] = ()
    """Payload of a row, per stream."""

    def __post_init__(self) -> None:
        if self.rates.shape != (len(self.streams), self.weights.size):
            raise ValueError("rates are needed for every stream and key")
        if not self.row_bytes:
            object.__setattr__(self, "row_bytes", (0.0,) * len(self.streams))

    @property
    def everything(self) -> int:
        return (1 << len(self.streams)) - 1

    def mask(self, streams: Iterable[str]) -> int:
        bits = self._bits
        return sum([bits[stream] for stream in streams])

    def names(self, mask: int) -> tuple[str, ...]:
        return tuple(stream for bit, stream in enumerate(self.streams) if mask >> bit & 1)

    def rate(self, stream: str) -> float:
        return float(self.rates[self.streams.index(stream)] @ self.weights)

    def with_rate(self, stream: str, rate: float) -> Statistics:
        """The same if a stream had another rate: its rows fall on the same keys in the same proportions."""
        now = self.rate(stream)
        rates = self.rates.copy()
        row = self.streams.index(stream)
        # Of a stream without rows nothing is known but how many there would be: they fall on all keys alike.
        rates[row] = rates[row] * (rate / now) if now > 0 else rate / self.weights.sum()
        return replace(self, rates=rates)

    def density(self, masks: Ints) -> Floats:
        """D of each set, edges included and conditions not."""
        if self.weights.size << len(self.streams) <= TABLE_MAX:
            listed: Floats = self._table[masks]
            return listed
        products = np.broadcast_to(self.weights, (*masks.shape, self.weights.size))
        for bit, rates in enumerate(self.rates):
            products = np.where((masks >> bit & 1)[..., None] == 1, products * rates, products)
        found: Floats = products.sum(axis=-1)
        for edge in self.edges:
            wanted = self.mask(edge.streams)
            found = np.where((masks & wanted) == wanted, found * edge.selectivity, found)
        return found

    def selectivity(self, masks: Ints) -> Floats:
        """Share of combinations that pass every condition that can be evaluated on them."""
        share = np.ones(masks.shape)
        for condition in self.conditions:
            wanted = self.mask(condition.streams)
            share[(masks & wanted) == wanted] *= condition.selectivity
        return share

    def flow(self, masks: Ints) -> Floats:
        """Combinations per second whose newest row is of one given stream: the same for each stream of the set."""
        return self.density(masks) * self.selectivity(masks) * self.window_s ** (popcount(masks) - 1.0)

    def size(self, masks: Ints) -> Floats:
        """Live combinations."""
        return self.density(masks) * self.selectivity(masks) * self.live_s(popcount(masks))

    def live_s(self, members: Ints) -> Floats:
        """What turns the density of so many streams into a number of live combinations: W^(m-1) (W + m L)."""
        lifetime: Floats = self.window_s ** (members - 1.0) * (self.window_s + members * self.lateness_s)
        return lifetime

    def size_of(self, streams: Iterable[str]) -> float:
        return float(self.size(np.array([self.mask(streams)]))[0])

    @cached_property
    def _table(self) -> Floats:
        """D of all sets. Stream i doubles the table: sets without it, then the same sets with it."""
        table = np.zeros(1 << len(self.streams))
        keys = max(1, PRODUCTS_AT_ONCE // table.size)
        for start in range(0, self.weights.size, keys):
            part = slice(start, start + keys)
            products = self.weights[None, part]
            for rates in self.rates[:, part]:
                products = np.concatenate([products, products * rates])
            table += products.sum(axis=1)
        return table * self._edge_table

    @cached_property
    def _edge_table(self) -> Floats:
        shares: dict[frozenset[str], float] = {}
        for edge in self.edges:
            shares[edge.streams] = shares.get(edge.streams, 1.0) * edge.selectivity
        table = np.ones(1)
        for number, stream in enumerate(self.streams):
            met = np.ones(1)
            for other in self.streams[:number]:
                met = np.concatenate([met, met * shares.get(frozenset((stream, other)), 1.0)])
            table = np.concatenate([table, table * met])
        return table

    @cached_property
    def between(self) -> Floats:
        """(streams, streams): the share of pairs that pass all edges and conditions between just those two."""
        shares = np.ones((len(self.streams), len(self.streams)))
        both: list[Edge | Condition] = [*self.edges, *self.conditions]
        for each in both:
            if len(each.streams) == 2:
                one, two = (self.streams.index(stream) for stream in each.streams)
                shares[[one, two], [two, one]] *= each.selectivity
        return shares

    @cached_property
    def _bits(self) -> dict[str, int]:
        return {stream: 1 << bit for bit, stream in enumerate(self.streams)}


def from_key_counts(
    counts: Mapping[str, Sequence[int] | Ints],
    *,
    window_s: float,
    lateness_s: float = 0.0,
    one_in: float | Sequence[float] | Floats = 64,
    conditions: Sequence[Condition] = (),
    row_bytes: Mapping[str, float] | None = None,
) -> Statistics:
    """From live rows of each stream by sampled key; `one_in` says how many keys each of them stands for."""
    streams = tuple(counts)
    live = np.array([np.asarray(counts[stream], np.float64) for stream in streams]).reshape(len(streams), -1)
    return Statistics(
        streams=streams,
        window_s=window_s,
        lateness_s=lateness_s,
        rates=live / (window_s + lateness_s),
        weights=np.broadcast_to(np.asarray(one_in, np.float64), live.shape[1:]).copy(),
        conditions=tuple(conditions),
        row_bytes=tuple((row_bytes or {}).get(stream, 0.0) for stream in streams),
    )


def from_graph(
    rates: Mapping[str, float],
    edges: Mapping[tuple[str, str], float],
    *,
    window_s: float,
    lateness_s: float = 0.0,
    conditions: Sequence[Condition] = (),
    row_bytes: Mapping[str, float] | None = None,
) -> Statistics:
    """From rates and independent selectivities, as JTree section 2.1 has them."""
    return Statistics(
        streams=tuple(rates),
        window_s=window_s,
        lateness_s=lateness_s,
        rates=np.array([[rate] for rate in rates.values()], np.float64),
        weights=np.ones(1),
        edges=tuple(Edge(frozenset(pair), selectivity) for pair, selectivity in edges.items()),
        conditions=tuple(conditions),
        row_bytes=tuple((row_bytes or {}).get(stream, 0.0) for stream in rates),
    )


def popcount(masks: Ints) -> Ints:
    """How many streams are in each set."""
    return np.bitwise_count(masks).astype(np.int64)

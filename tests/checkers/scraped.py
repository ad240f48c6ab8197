"""One scrape of /metrics, parsed as Prometheus parses it: every series once, each with its family's type."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]


class Scraped:
    def __init__(self, text: str) -> None:
        self.types: dict[str, str] = {}
        self.samples: dict[tuple[str, Labels], float] = {}
        for family in text_string_to_metric_families(text):
            self.types[family.name] = family.type
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in self.samples, f"{key} is there twice"
                self.samples[key] = sample.value

    def value(self, name: str, **labels: object) -> float:
        """Of the one series with exactly these labels."""
        return self.samples[name, frozenset((label, str(value)) for label, value in labels.items())]

    def all(self, name: str, **labels: object) -> dict[Labels, float]:
        """Series of this name that have these labels, among others."""
        wanted = {(label, str(value)) for label, value in labels.items()}
        return {key[1]: value for key, value in self.samples.items() if key[0] == name and wanted <= key[1]}

    def sum(self, name: str, **labels: object) -> float:
        return sum(self.all(name, **labels).values())

    def names(self) -> set[str]:
        return {name for name, _ in self.samples}

    def about(self, query: str) -> Iterator[tuple[str, Labels]]:
        """Series with this query's name, but those that every instance has about every query."""
        for name, labels in self.samples:
            if ("query", query) in labels and not name.startswith("trimtab_manager_"):
                yield name, labels

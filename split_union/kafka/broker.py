"""Asks Kafka before a query starts: is it there, are the topics, does the client know its options, what is in a topic.

Spoken through the JVM, with the clients that the connector brings: the query itself uses the same ones.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from split_union.kafka.options import PREFIX, check_client_options, secrets_of, without_secrets
from trimtab.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMEOUT_MS: Final = 20_000
_CONFIG: Final = {"source": "consumer.ConsumerConfig", "sink": "producer.ProducerConfig"}
_TOPICS_SHOWN: Final = 12


@dataclass(frozen=True)
class Broker:
    """One part of a query that speaks to Kafka, and where it is in the user's file."""

    spark: SparkSession
    field: str
    servers: str
    options: Mapping[str, str]
    """With the prefix `kafka.`, as Spark has them; others are passed over."""

    def check_options(self, side: str) -> None:
        """`side`: source or sink."""
        check_client_options(self.field, self.options, self._class(_CONFIG[side]).configNames())

    def check_topics(self, field: str, topics: Sequence[str]) -> None:
        """Refuse topics that are not there: a source would fail in its first batch, a sink in its first results."""
        there = self.topics()
        for topic in topics:
            if topic not in there:
                near = difflib.get_close_matches(topic, there, 1)
                hint = f"Did you mean {near[0]!r}? " if near else ""
                known = f"It has: {', '.join(there[:_TOPICS_SHOWN])}." if there else "It has none."
                raise InvalidInput(field, topic, f"is not a topic at {self.servers}", f"{hint}Create it first. {known}")

    def check_pattern(self, field: str, pattern: str) -> list[str]:
        """The topics that it matches now; refuse one that matches none."""
        try:
            # Java's expressions decide later; those that differ from Python's are rare in names of topics.
            matched = [topic for topic in self.topics() if re.fullmatch(pattern, topic)]
        except re.error as error:
            raise InvalidInput(field, pattern, f"is not a regular expression ({error})", "Correct it.") from None
        if not matched:
            raise InvalidInput(field, pattern, f"matches no topic at {self.servers}", "Correct it, or create one.")
        return matched

    def topics(self) -> list[str]:
        with self._admin() as admin:
            return sorted(str(name) for name in admin.listTopics().names().get())

    def newest(self, topics: Sequence[str], count: int) -> dict[str, dict[str, tuple[int, int]]]:
        """Of each partition that has records: offsets of the newest `count`, first and end."""
        jvm: Any = self.spark._jvm
        kinds = jvm.org.apache.kafka.clients.admin.OffsetSpec
        with self._admin() as admin:
            names = jvm.java.util.ArrayList()
            for topic in topics:
                names.add(topic)
            partitions = [
                jvm.org.apache.kafka.common.TopicPartition(topic, described.partition())
                for topic, description in dict(admin.describeTopics(names).allTopicNames().get()).items()
                for described in description.partitions()
            ]
            ends = []
            for kind in (kinds.earliest(), kinds.latest()):
                asked = jvm.java.util.HashMap()
                for partition in partitions:
                    asked.put(partition, kind)
                answer = admin.listOffsets(asked).all().get()
                ends.append([answer.get(partition).offset() for partition in partitions])
        found: dict[str, dict[str, tuple[int, int]]] = {}
        for partition, first, end in zip(partitions, *ends, strict=True):
            if end > first:
                found.setdefault(partition.topic(), {})[str(partition.partition())] = (max(first, end - count), end)
        return found

    @contextmanager
    def _admin(self) -> Iterator[Any]:
        from py4j.protocol import Py4JJavaError

        jvm: Any = self.spark._jvm
        known = set(self._class("admin.AdminClientConfig").configNames())
        settings = jvm.java.util.HashMap()
        for name, value in self.options.items():
            if name.startswith(PREFIX) and (own := name.removeprefix(PREFIX)) in known:
                settings.put(own, value)
        settings.put("bootstrap.servers", self.servers)
        settings.put("default.api.timeout.ms", str(TIMEOUT_MS))
        settings.put("request.timeout.ms", str(TIMEOUT_MS // 2))
        admin = None
        try:
            admin = self._class("admin.AdminClient").create(settings)
            yield admin
        except Py4JJavaError as error:
            raise self._explained(error.java_exception) from None
        finally:
            if admin is not None:
                admin.close()

    def _explained(self, error: Any) -> InvalidInput:
        """The innermost cause, in words that help."""
        while error.getCause() is not None:
            error = error.getCause()
        name = str(error.getClass().getSimpleName())
        problem = without_secrets(" ".join(str(error.getMessage()).split()), secrets_of(self.options)).rstrip(".")
        if name in ("TimeoutException", "ConfigException"):
            return InvalidInput(
                f"{self.field}.servers" if name == "TimeoutException" or "bootstrap" in problem else self.field,
                self.servers,
                f"cannot be used ({problem})" if name == "ConfigException" else f"does not answer ({problem})",
                "Correct host and port, start Kafka there, and check the kafka.security options.",
            )
        return InvalidInput(
            self.field, self.servers, f"is refused by Kafka ({name}: {problem})", "Check options and rights."
        )

    def _class(self, name: str) -> Any:
        found = self.spark._jvm
        for part in f"org.apache.kafka.clients.{name}".split("."):
            found = getattr(found, part)
        return found

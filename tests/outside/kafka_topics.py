"""A real Kafka seen from beside the query: topics are made, filled and read here with a client of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

WAIT_S: Final = 120.0
_QUIET: Final = {"log_level": 0}
"""Its threads would complain of a server that has ended."""


@dataclass(frozen=True)
class Record:
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, str]

    @property
    def place(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


class Topics:
    """Topics at one server."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self._admin = AdminClient({"bootstrap.servers": servers, **_QUIET})
        self._producer = Producer({"bootstrap.servers": servers, **_QUIET})

    def create(self, name: str, partitions: int = 2) -> str:
        for future in self._admin.create_topics([NewTopic(name, partitions, 1)]).values():
            future.result(WAIT_S)
        return name

    def send(self, topic: str, records: Iterable[tuple[int, bytes | None, bytes | None, int]]) -> list[str]:
        """(partition, key, value, milliseconds); returns their places, in this order."""
        places: dict[int, str] = {}
        problems: list[Any] = []

        def told(number: int) -> Any:
            def delivered(error: Any, message: Any) -> None:
                if error is not None:
                    problems.append(error)
                else:
                    places[number] = f"{topic}/{message.partition()}/{message.offset()}"

            return delivered

        count = 0
        for number, (partition, key, value, at_ms) in enumerate(records):
            self._producer.produce(topic, value, key, partition=partition, timestamp=at_ms, on_delivery=told(number))
            count += 1
        self._producer.flush(WAIT_S)
        assert not problems, problems
        assert len(places) == count
        return [places[number] for number in range(count)]

    def ends(self, topic: str) -> dict[int, int]:
        """The number of records in each partition."""
        consumer = self._consumer()
        try:
            known = consumer.list_topics(topic, WAIT_S).topics[topic].partitions
            return {
                partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), WAIT_S)[1]
                for partition in known
            }
        finally:
            consumer.close()

    def size(self, topic: str) -> int:
        return sum(self.ends(topic).values())

    def read(self, topic: str) -> list[Record]:
        """Everything that is in the topic now."""
        ends = self.ends(topic)
        consumer = self._consumer()
        try:
            consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
            found: list[Record] = []
            while len(found) < sum(ends.values()):
                message = consumer.poll(WAIT_S)
                assert message is not None and message.error() is None, message
                headers = {name: bytes(value).decode() for name, value in message.headers() or ()}
                found.append(
                    Record(topic, message.partition(), message.offset(), message.key(), message.value(), headers)
                )
            return found
        finally:
            consumer.close()

    def _consumer(self) -> Any:
        return Consumer(
            {"bootstrap.servers": self.servers, "group.id": uuid.uuid4().hex, "enable.auto.commit": False, **_QUIET}
        )

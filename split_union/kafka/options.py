"""Options of Spark's Kafka source and sink: which there are, which have a field of their own, and which are secret.

Options that begin with `kafka.` go to Kafka's own clients. Those are looked up in the clients' own lists, once there is
a JVM to ask (`split_union.kafka.broker`).
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

from trimtab.errors import InvalidInput

PREFIX: Final = "kafka."
SERVERS: Final = "kafka.bootstrap.servers"

SOURCE_OPTIONS: Final = (
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
"""Of Spark's source, for streams."""
_NUMBERS: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "minPartitions", "maxRecordsPerPartition")
_WHOLE: Final = (
    "startingTimestamp",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
_WORDS: Final = {"failOnDataLoss": ("true", "false"), "startingOffsetsByTimestampStrategy": ("error", "latest")}
_OWN_FIELDS: Final = {
    SERVERS: "Write `servers:` beside `format:`.",
    "subscribe": "Write `topics:` beside `format:`.",
    "subscribePattern": "Write `pattern:` beside `format:`.",
    "assign": "Write `topics:` beside `format:`; all partitions of a topic are read.",
    "topic": "Write `topic:` beside `format:`.",
    "path": "Write `topic:` beside `format:`.",
    "includeHeaders": "Leave it out: headers are not part of a stream's rows.",
    "endingOffsets": "Leave it out: a stream has no end. `trigger: available now` reads what is there and stops.",
}
_SPARKS_OWN: Final = (
    "kafka.key.deserializer",
    "kafka.value.deserializer",
    "kafka.key.serializer",
    "kafka.value.serializer",
    "kafka.enable.auto.commit",
    "kafka.auto.offset.reset",
    "kafka.interceptor.classes",
)
_SECRET: Final = re.compile(r"password|secret|jaas|token|credential|private|keystore\.key", re.IGNORECASE)
HIDDEN: Final = "***"


def check_source_options(options: Mapping[str, str]) -> None:
    """Refuse what Spark's Kafka source does not know: it would be ignored in silence."""
    _check_names(options, SOURCE_OPTIONS)
    for name in _NUMBERS:
        text = options.get(name)
        if text is not None and not (text.isdecimal() and int(text) > 0):
            raise InvalidInput(f"options.{name}", text, "is not a number of records", "Write a whole number above 0.")
    for name in _WHOLE:
        text = options.get(name)
        if text is not None and not text.isdecimal():
            raise InvalidInput(f"options.{name}", text, "is not a number", "Write a whole number, 0 or above.")
    for name, words in _WORDS.items():
        text = options.get(name)
        if text is not None and text.lower() not in words:
            raise InvalidInput(f"options.{name}", text, "is not known", f"Write {' or '.join(words)}.")
    _check_least(options)
    for name in ("startingOffsets", "startingOffsetsByTimestamp"):
        text = options.get(name)
        if text is not None and not (name == "startingOffsets" and text in ("earliest", "latest")):
            _check_offsets(f"options.{name}", text)


def check_sink_options(options: Mapping[str, str]) -> None:
    """A sink has only options of Kafka's producer, of which some would make it less than at-least-once, or no sink."""
    _check_names(options, ())
    acks = options.get("kafka.acks", "all")
    if acks not in ("all", "-1"):
        problem = "loses results when a broker fails: it does not wait until they are kept"
        raise InvalidInput("options.kafka.acks", acks, problem, "Write all, or leave it out.")
    if "kafka.transactional.id" in options:
        value = options["kafka.transactional.id"]
        remedy = "Leave it out: consumers drop repeats by their ids (docs/kafka.md)."
        raise InvalidInput("options.kafka.transactional.id", value, "needs transactions, which Spark has not", remedy)


def _check_least(options: Mapping[str, str]) -> None:
    """`minOffsetsPerTrigger`, and how long it may hold a batch back."""
    least, most = (options.get(f"{name}OffsetsPerTrigger") for name in ("min", "max"))
    if least and most and int(least) > int(most):
        problem = f"is more than maxOffsetsPerTrigger = {most}"
        raise InvalidInput("options.minOffsetsPerTrigger", least, problem, "Write less.")
    delay = options.get("maxTriggerDelay")
    if delay is not None and not re.fullmatch(r"\d+(us|ms|s|m|min|h|d)?", delay):
        raise InvalidInput("options.maxTriggerDelay", delay, "is not a time", "Write 15m, 30s or 500ms.")


def _check_names(options: Mapping[str, str], known: Iterable[str]) -> None:
    for name in options:
        if name in _OWN_FIELDS:
            raise InvalidInput(f"options.{name}", shown(name, options), "has a place of its own", _OWN_FIELDS[name])
        if name in _SPARKS_OWN:
            raise InvalidInput(f"options.{name}", options[name], "is set by Spark itself", "Leave it out.")
        if name not in known and not name.startswith(PREFIX):
            near = difflib.get_close_matches(name, [*known, *(PREFIX + each for each in _COMMON)], 1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            there = f"There are: {', '.join(known)}; and" if known else "There are"
            raise InvalidInput(
                f"options.{name}",
                shown(name, options),
                "is not an option of Kafka in Spark",
                f"{hint}{there} those of Kafka's own clients, such as kafka.security.protocol.",
            )


_COMMON: Final = ("security.protocol", "sasl.mechanism", "sasl.jaas.config", "ssl.truststore.location")


def _check_offsets(field: str, text: str) -> None:
    """{"topic": {"partition": offset}}; Spark says the same, but only when the first batch is planned."""
    remedy = 'Write earliest, latest or, for each partition, {"orders": {"0": 23, "1": -2}} (-2: earliest, -1: latest).'
    try:
        body = json.loads(text)
        right = isinstance(body, dict) and all(
            partition.isdecimal() and type(offset) is int and offset >= -2
            for partitions in body.values()
            for partition, offset in partitions.items()
        )
    except (ValueError, AttributeError):
        right = False
    if not right:
        raise InvalidInput(field, text, "is not a place in a topic", remedy)


def check_client_options(field: str, options: Mapping[str, str], known: Iterable[str]) -> None:
    """Refuse a misspelt option of Kafka's clients, which only log a warning about it.

    One that resembles none of theirs may be meant for a class that the user brings, and passes.
    """
    names = list(known)
    for name in options:
        own = name.removeprefix(PREFIX)
        if name.startswith(PREFIX) and own not in names:
            near = difflib.get_close_matches(own, names, 1, cutoff=0.85)
            if near:
                raise InvalidInput(
                    f"{field}.options.{name}",
                    shown(name, options),
                    "is not an option of Kafka's client",
                    f"Did you mean '{PREFIX}{near[0]}'?",
                )


def shown(name: str, options: Mapping[str, str]) -> str:
    """An option's value for a message."""
    return HIDDEN if _SECRET.search(name) else options[name]


def secrets_of(options: Mapping[str, str]) -> tuple[str, ...]:
    """Values that must not be printed."""
    return tuple(value for name, value in options.items() if value and _SECRET.search(name))


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """What Spark or Kafka said, without what it may have quoted."""
    for secret in sorted(secrets, key=len, reverse=True):
        # Clients may quote an option in part, such as the password inside a JAAS line.
        quoted = re.findall(r'="([^"]{4,})"', secret)
        for part in (secret, *quoted):
            text = text.replace(part, HIDDEN)
    return text

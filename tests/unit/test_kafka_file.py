"""`format: kafka` without Kafka: what a query.yaml may say, and how it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands.runner.job import JobFile, load_job
from commands.runner.kafka_part import KafkaSinkPart, KafkaSourcePart
from split_union.kafka.options import check_client_options, secrets_of, without_secrets
from trimtab.errors import InvalidInput

GOOD = """
checkpoint: checkpoint
query:
  name: orders
  window: 10 seconds
  lateness: 5 seconds
  streams:
    A:
      key: user
      time: at
      source:
        format: kafka
        servers: [one:9092, two:9093]
        topics: orders
        value: {format: json, schema: "user long, price double, at timestamp"}
        dead_letters: orders-dead
        options: {startingOffsets: earliest, maxOffsetsPerTrigger: 1000, kafka.security.protocol: PLAINTEXT}
    B:
      key: user
      time: _timestamp
      source:
        format: kafka
        servers: one:9092
        pattern: pay.*
        key: {format: text, schema: user long}
        value: {format: avro, registry: {url: "http://registry:8081", subject: payments-value}}
sink:
  format: kafka
  servers: one:9092
  topic: joined
  key: {columns: [A_user], format: text}
  value: {format: json}
  trigger: processing 1 second
"""


def _load(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> JobFile:
    path = tmp_path / "query.yaml"
    path.write_text(text)
    return load_job(path, environ or {})


def test_a_good_file(tmp_path: Path) -> None:
    job = _load(tmp_path, GOOD)
    first, second = (stream.source for stream in job.query.streams.values())
    assert isinstance(first, KafkaSourcePart) and isinstance(second, KafkaSourcePart)
    assert (first.servers, first.topics, first.dead_letters) == ("one:9092,two:9093", ["orders"], "orders-dead")
    assert (second.pattern, second.topics, second.sample) == ("pay.*", [], 20)
    assert isinstance(job.sink, KafkaSinkPart)
    assert job.join_query().stream_names == ("A", "B")


@pytest.mark.parametrize(
    ("old", "new", "field", "words"),
    [
        ("startingOffsets: earliest", "startingOffset: earliest", ".options.startingOffset", "mean 'startingOffsets'"),
        ("startingOffsets: earliest", "startingOffsets: first", ".options.startingOffsets", "earliest, latest"),
        ("startingOffsets: earliest", "startingOffsets: '{\"a\": 3}'", ".options.startingOffsets", "place in a topic"),
        ("maxOffsetsPerTrigger: 1000", "maxOffsetsPerTrigger: some", ".maxOffsetsPerTrigger", "whole number above 0"),
        ("startingOffsets: earliest", "endingOffsets: latest", ".options.endingOffsets", "available now"),
        ("startingOffsets: earliest", "subscribe: orders", ".options.subscribe", "`topics:`"),
        ("startingOffsets: earliest", "kafka.enable.auto.commit: true", ".auto.commit", "set by Spark itself"),
        ("        topics: orders\n", "", "A.source.topics", "Name the topic to read"),
        ("topics: orders\n", "topics: ''\n", "A.source.topics", "names no topic"),
        ("topics: orders\n", "topics: orders\n        pattern: o.*\n", "A.source.pattern", "Leave one of them out"),
        ("[one:9092, two:9093]", "one", "A.source.servers", "host:9092"),
        ("        servers: [one:9092, two:9093]\n", "", "A.source.servers", "is missing"),
        ("dead_letters: orders-dead", "dead_leters: orders-dead", "A.source.dead_leters", "mean 'dead_letters'"),
        (
            'format: json, schema: "user',
            'format: jsn, schema: "user',
            "A.source.value.format",
            "'json', 'avro' or 'text'",
        ),
        (', schema: "user long, price double, at timestamp"', "", "A.source.value.schema", "columns as in SQL"),
        (
            "schema: user long}",
            "schema: user long, registry: {url: u, subject: s}}",
            "B.source.key.registry",
            "Give one",
        ),
        ("subject: payments-value", "subjct: payments-value", "registry.subject", "is missing"),
        ("  topic: joined\n", "", "sink.topic", "is missing"),
        ("  topic: joined\n", "  topic: ' '\n", "sink.topic", "names no topic"),
        ("  value: {format: json}\n", "  value: {format: text}\n", "sink.value.format", "'json' or 'avro'"),
        ("trigger: processing 1 second", "trigger: hourly", "sink.trigger", "available now"),
        ("one:9092, two:9093", "http://one:9092", "A.source.servers", "host:9092"),
        ("one:9092, two:9093", "one:90920", "A.source.servers", "host:9092"),
        ("startingOffsets: earliest", "failOnDataLoss: no way", ".options.failOnDataLoss", "true or false"),
        ("startingOffsets: earliest", "startingTimestamp: now", ".options.startingTimestamp", "whole number"),
        ("startingOffsets: earliest", 'startingOffsets: \'{"a": {"0": -3}}\'', ".startingOffsets", "place in a topic"),
        ("startingOffsets: earliest", "maxTriggerDelay: a day", ".options.maxTriggerDelay", "Write 15m"),
        ("startingOffsets: earliest", "minOffsetsPerTrigger: 1001", ".minOffsetsPerTrigger", "maxOffsetsPerTrigger"),
        ("dead_letters: orders-dead", "dead_letters: ''", "A.source.dead_letters", "names no topic"),
        ("dead_letters: orders-dead", "dead_letters: joined", "A.source.dead_letters", "is sink.topic, too"),
        ("dead_letters: orders-dead", "dead_letters: orders", "A.source.dead_letters", "read by the stream A"),
        ("dead_letters: orders-dead", "dead_letters: pay-dead", "A.source.dead_letters", "read by the stream B"),
        ("  topic: joined\n", "  topic: orders\n", "sink.topic", "read by the stream A"),
        ("trigger: processing 1 second", "options: {kafka.acks: 1}", "sink.options.kafka.acks", "loses results"),
        ("trigger: processing 1 second", "options: {kafka.transactional.id: x}", ".transactional.id", "transactions"),
        (
            "trigger: processing 1 second",
            "options: {compression.type: zstd}",
            "sink.options.compression.type",
            "Kafka's own clients",
        ),
    ],
)
def test_bad_input_names_field_value_and_remedy(tmp_path: Path, old: str, new: str, field: str, words: str) -> None:
    assert old in GOOD
    with pytest.raises(InvalidInput) as caught:
        _load(tmp_path, GOOD.replace(old, new, 1))
    assert caught.value.field.endswith(field), caught.value
    assert words in str(caught.value)
    assert caught.value.remedy


def test_a_topic_of_the_same_name_elsewhere_is_another(tmp_path: Path) -> None:
    text = GOOD.replace("servers: [one:9092, two:9093]", "servers: elsewhere:9092").replace(
        "topic: joined", "topic: orders"
    )
    assert _load(tmp_path, text).sink.options == {}


def test_dead_letters_need_a_kafka_sink(tmp_path: Path) -> None:
    text = GOOD[: GOOD.index("sink:")] + "sink: {format: parquet, path: out}\n"
    with pytest.raises(InvalidInput) as caught:
        _load(tmp_path, text)
    assert caught.value.field == "query.streams.A.source.dead_letters"
    assert caught.value.value == "orders-dead"
    assert "sink.format is parquet" in str(caught.value)


def test_secrets_come_from_files_and_are_not_repeated(tmp_path: Path) -> None:
    jaas = 'org.apache.kafka.PlainLoginModule required username="me" password="canary-1";'
    (tmp_path / "jaas").write_text(f"{jaas}\n")
    secret = f"kafka.sasl.jaas.config: '${{file:{tmp_path}/jaas}}'"
    job = _load(tmp_path, GOOD.replace("startingOffsets: earliest", secret))
    assert job.secrets() == (jaas,)
    assert without_secrets(f"Unknown module in {jaas}", job.secrets()) == "Unknown module in ***"
    assert "canary" not in without_secrets('login with "canary-1" failed', job.secrets())
    misspelt = "kafka_sasl.jaas.config: canary-2, startingOffsets: earliest"
    with pytest.raises(InvalidInput) as caught:
        _load(tmp_path, GOOD.replace("startingOffsets: earliest", misspelt))
    assert "canary" not in str(caught.value)
    with pytest.raises(InvalidInput, match="cannot be read"):
        _load(tmp_path, GOOD.replace("startingOffsets: earliest", secret.replace("/jaas}", "/no}")))


def test_options_of_kafkas_clients() -> None:
    known = ["security.protocol", "sasl.jaas.config", "fetch.min.bytes"]
    check_client_options("sink", {"kafka.fetch.min.bytes": "1", "kafka.of.my.own.callback": "x"}, known)
    with pytest.raises(InvalidInput) as caught:
        check_client_options("sink", {"kafka.securty.protocol": "SSL"}, known)
    assert caught.value.field == "sink.options.kafka.securty.protocol"
    assert "kafka.security.protocol" in caught.value.remedy
    with pytest.raises(InvalidInput) as caught:
        check_client_options("sink", {"kafka.sasl.jaas.confg": "canary"}, known)
    assert "canary" not in str(caught.value)


def test_what_is_secret() -> None:
    given = {"kafka.ssl.key.password": "a", "kafka.sasl.jaas.config": "b", "kafka.ssl.keystore.location": "/c"}
    assert secrets_of(given) == ("a", "b")

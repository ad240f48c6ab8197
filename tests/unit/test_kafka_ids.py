"""Numbers for equal results, formats and schema registries, without Spark and without Kafka."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from split_union.kafka.formats import RegisteredSchema, check_avro_schema, wire_prefix
from split_union.kafka.identity import Numbers
from split_union.kafka.registry import Registry, versions_of
from tests.checkers.registry import RegistryServer
from trimtab.errors import InvalidInput

AVRO = '{"type": "record", "name": "o", "fields": [{"name": "user", "type": "long"}]}'


def test_equal_results_get_ids_of_their_own_and_the_same_ones_again() -> None:
    results = ["x", "y", "x", "x"]
    once = Numbers(7, 2).of(results)
    assert once == ["x.7.2.0", "y.7.2.0", "x.7.2.1", "x.7.2.2"]
    random.Random(1).shuffle(results)
    again = Numbers(7, 2)
    assert sorted(again.of(results[:2]) + again.of(results[2:])) == sorted(once), "in any order, in any pieces"
    assert not set(once) & set(Numbers(8, 2).of(results)), "of another batch"
    assert not set(once) & set(Numbers(7, 1).of(results)), "of another worker"


def test_the_wire_format() -> None:
    assert wire_prefix(258) == b"\x00\x00\x00\x01\x02"


@pytest.mark.parametrize("text", ["{", '"long"', '{"type": "record", "name": "o", "fields": []}'])
def test_what_is_not_a_record_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_avro_schema("value.schema", text)
    assert caught.value.field == "value.schema"


PAYMENTS = [
    {"id": 11, "version": 1, "schema": AVRO},
    {"id": 12, "version": 3, "schema": AVRO.replace("long", "string")},
]
PROTO = [{"id": 1, "version": 1, "schema": "message", "schemaType": "PROTOBUF"}]


@pytest.fixture
def url() -> Iterator[str]:
    with RegistryServer({"pay/value": PAYMENTS, "proto": PROTO}, "me:canary") as registry:
        yield registry.url


def test_all_versions_of_a_subject_oldest_first(url: str) -> None:
    found = versions_of(Registry(url, "me", "canary"), "pay/value", "registry")
    assert found == (RegisteredSchema(11, 1, AVRO), RegisteredSchema(12, 3, AVRO.replace("long", "string")))


@pytest.mark.parametrize(
    ("password", "subject", "field", "words"),
    [
        ("wrong", "pay/value", "registry.url", "username"),
        ("canary", "nothing", "registry.subject", "not known to the registry"),
        ("canary", "proto", "registry.subject", "PROTOBUF"),
    ],
)
def test_a_registry_that_has_nothing_for_us(url: str, password: str, subject: str, field: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        versions_of(Registry(url, "me", password), subject, "registry")
    assert caught.value.field == field
    assert words in str(caught.value)
    assert "canary" not in str(caught.value) and "wrong" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "ftp://registry", "http://me:canary@registry"])
def test_a_registry_that_is_not_there(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        versions_of(Registry(url), "s", "registry")
    assert caught.value.field == "registry.url"
    assert "canary" not in str(caught.value)

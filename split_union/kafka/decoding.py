"""From a record's bytes to columns, in Spark's own expressions; a record that cannot be used gets a reason.

Nothing here fails on a record: what does not fit leaves nulls and a reason behind. JSON and text are checked field by
field. Avro has no check of its own: bytes that happen to be a value of the schema are one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql import types as T

from split_union.kafka.formats import AVRO, JSON, MAGIC, PREFIX_BYTES, TIME_FORMAT, RecordFormat, wire_prefix
from trimtab.conditions.placement import quote
from trimtab.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_CORRUPT = "__trimtab_corrupt"
_JSON_WRITING = {"timestampFormat": TIME_FORMAT, "ignoreNullFields": "false", "timeZone": "UTC"}


def schema_of(spark: SparkSession, form: RecordFormat) -> T.StructType:
    """The columns that a record is decoded into. Spark raises where the schema is not one."""
    assert form.schema is not None
    if form.kind == AVRO:
        from pyspark.sql.avro.functions import from_avro

        empty = spark.createDataFrame([], "bytes binary").select(from_avro("bytes", form.schema).alias("record"))
        decoded = empty.schema["record"].dataType
    else:
        decoded = T.StructType.fromDDL(form.schema)
    assert isinstance(decoded, T.StructType)
    return decoded


def decoded(frame: DataFrame, source: str, form: RecordFormat, schema: T.StructType, into: str) -> DataFrame:
    """Adds the structure `into`, made from the bytes in `source`, and its reason `into`_problem."""
    if form.kind == AVRO:
        return _avro(frame, source, form, schema, into)
    if form.kind == JSON:
        return _json(frame, source, schema, into)
    return _text(frame, source, schema, into)


def _json(frame: DataFrame, source: str, schema: T.StructType, into: str) -> DataFrame:
    written = T.StructType([*schema.fields, T.StructField(_CORRUPT, T.StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    body = F.from_json(F.col(source).cast("string"), written, options)
    frame = frame.withColumn(into, body)
    problem = F.when(F.col(source).isNull(), _missing(source)).when(
        F.col(into).isNull() | F.col(into).getField(_CORRUPT).isNotNull(),
        F.lit(f"the {_word(source)} is not JSON of the schema"),
    )
    return frame.withColumn(f"{into}_problem", problem)


def _text(frame: DataFrame, source: str, schema: T.StructType, into: str) -> DataFrame:
    (only,) = schema.fields
    text = F.col(source).cast("string")
    value = text.try_cast(only.dataType)
    frame = frame.withColumn(into, F.struct(value.alias(only.name)))
    problem = F.when(F.col(source).isNull(), _missing(source)).when(
        F.col(into).getField(only.name).isNull(),
        F.lit(f"the {_word(source)} is not a text that holds {only.dataType.simpleString()}"),
    )
    return frame.withColumn(f"{into}_problem", problem)


def _avro(frame: DataFrame, source: str, form: RecordFormat, schema: T.StructType, into: str) -> DataFrame:
    from pyspark.sql.avro.functions import from_avro

    assert form.schema is not None
    bytes_in = F.col(source)
    problem = F.when(bytes_in.isNull(), _missing(source))
    if not form.registered:
        body = from_avro(source, form.schema, {"mode": "PERMISSIVE"})
    else:
        # Which version wrote a record is in its prefix; each is read with its own schema and resolved to the newest.
        head = F.conv(F.hex(F.substring(source, 1, PREFIX_BYTES)), 16, 10).cast("long")
        payload = F.expr(f"substring({quote(source)}, {PREFIX_BYTES + 1})")
        options = {"mode": "PERMISSIVE", "avroSchema": form.schema}
        body = F.lit(None).cast(schema)
        for version in form.registered:
            body = F.when(head == version.id, from_avro(payload, version.schema, options)).otherwise(body)
        known = [version.id for version in form.registered]
        in_wire_format = (F.length(source) > PREFIX_BYTES) & (F.substring(source, 1, 1) == F.lit(bytes([MAGIC])))
        problem = problem.when(
            ~in_wire_format, F.lit(f"the {_word(source)} does not begin as records with a schema registry do")
        ).when(
            ~head.isin(known),
            F.concat(F.lit("schema "), head.cast("string"), F.lit(" was not in the registry when the query started")),
        )
    frame = frame.withColumn(into, body)
    # A record that cannot be read is one whose fields are all null, or no record at all, depending on Spark's version.
    nothing = [F.col(into).getField(name).isNull() for name in schema.names]
    unread = F.col(into).isNull()
    if nothing:
        every = nothing[0]
        for each in nothing[1:]:
            every = every & each
        unread = unread | every
    return frame.withColumn(
        f"{into}_problem", problem.when(unread, F.lit(f"the {_word(source)} is not Avro of the schema"))
    )


def encoded(columns: dict[str, Column], form: RecordFormat) -> Column:
    """Columns as the bytes of a key or a value."""
    if form.kind == AVRO:
        from pyspark.sql.avro.functions import to_avro

        structure = F.struct(*(column.alias(name) for name, column in columns.items()))
        body = to_avro(structure, form.schema) if form.schema is not None else to_avro(structure)
        if not form.registered:
            return body
        return F.concat(F.lit(wire_prefix(form.registered[-1].id)), body)
    if form.kind == JSON:
        return as_json(columns).cast("binary")
    if len(columns) != 1:
        raise InvalidInput("columns", list(columns), "are several, and text holds one", "Use format: json.")
    (only,) = columns.values()
    return only.cast("string").cast("binary")


def check_fits(field: str, frame: DataFrame, columns: dict[str, Column], form: RecordFormat) -> None:
    """Refuse, by Spark's own rules, columns that do not fit the Avro schema that they are to be written with."""
    if form.kind != AVRO or form.schema is None:
        return
    from py4j.protocol import Py4JJavaError

    spark = frame.sparkSession
    jvm: Any = spark._jvm
    fields = frame.select(*(column.alias(name) for name, column in columns.items())).schema
    try:
        schema = jvm.org.apache.avro.Schema.Parser().parse(form.schema)
        jvm.org.apache.spark.sql.avro.AvroSerializer(spark._jsparkSession.parseDataType(fields.json()), schema, False)
    except Py4JJavaError as error:
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        problem = " ".join(str(cause.getMessage()).split()).rstrip(".")
        raise InvalidInput(
            f"{field}.schema",
            fields.simpleString(),
            f"does not fit the Avro schema: {problem}",
            "Choose and rename columns to fit it, or correct the schema.",
        ) from None


def as_json(columns: dict[str, Column]) -> Column:
    """An object with all fields, nulls too, times in UTC with microseconds."""
    return F.to_json(F.struct(*(column.alias(name) for name, column in columns.items())), _JSON_WRITING)


def _word(source: str) -> str:
    return "key" if source.endswith("key") else "value"


def _missing(source: str) -> Column:
    return F.lit(f"the {_word(source)} is missing")

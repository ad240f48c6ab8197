"""`trimtab run query.yaml`: builds the query, starts it, prints a line per batch, ends it in order."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from commands.runner.job import JobFile, SinkPart, load_job
from commands.runner.kafka_part import KafkaSinkPart
from commands.runner.stopping import StopRequest, stop_query
from commands.runner.yaml_part import option_texts
from split_union.kafka.options import without_secrets
from trimtab.driver_progress import Sources
from trimtab.errors import InvalidInput, TrimtabError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S: Final = 0.2
OK: Final = 0
FAILED: Final = 1


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    check: bool = False
    duration_s: float | None = None
    progress: bool = True
    as_json: bool = False


class QueryFailed(TrimtabError):
    """The running query ended with an error; what it had committed is safe in its checkpoint."""


def run_file(path: Path, options: RunOptions) -> int:
    """Exit code 0; bad input raises InvalidInput, a failed query QueryFailed."""
    job = load_job(path)
    stop = StopRequest()
    with stop.installed(), tempfile.TemporaryDirectory(prefix="trimtab-run-") as scratch:
        return _on_spark(job, options, stop, Path(scratch))


def _on_spark(job: JobFile, options: RunOptions, stop: StopRequest, scratch: Path) -> int:
    # Imported here, so that --help and errors in the file are answered at once.
    from commands.runner.spark_session import make_session, stop_session, submitted

    if submitted() and job.spark.master is not None:
        _note(f"spark.master = {job.spark.master!r} is ignored: this session has a master already")
    spark = make_session(
        master=job.spark.master,
        app_name=job.spark.app_name or f"trimtab {job.query.name}",
        config=option_texts(job.spark.config),
        scratch=scratch,
    )
    try:
        with stop.installed():
            if options.check:
                _check(spark, job, scratch, as_json=options.as_json)
            elif not stop:
                _run(spark, job, options, stop)
    finally:
        # A session from spark-submit may be stopped too: it ends with this program.
        stop_session(spark)
    return OK


def _check(spark: SparkSession, job: JobFile, scratch: Path, *, as_json: bool) -> None:
    """Everything that a start would check. Nothing is written: neither the checkpoint nor Redis changes."""
    from commands.runner.build import build_join, build_writer, check_sink
    from split_union.definition import check_name_is_free
    from split_union.kafka.source import ROW_ID
    from trimtab.embedded import EmbeddedRedis
    from trimtab.store import Store

    if job.redis is not None:
        store = Store(job.redis)
        store.check()
        check_name_is_free(job.query.name, job.checkpoint, store)
    # The join only reads a checkpoint that has run. It would write to a new one, so that is replaced.
    used = has_run(job.checkpoint)
    with EmbeddedRedis() as server:
        joined = build_join(
            spark, job, checkpoint=job.checkpoint if used else str(scratch / "checkpoint"), redis=server.url
        )
        build_writer(joined, job)
        check_sink(spark, job.sink)
    result = joined.result
    hidden = {f"{name}_{ROW_ID}" for name in job.query.streams} if isinstance(job.sink, KafkaSinkPart) else set()
    fields = [field for field in result.schema.fields if field.name not in hidden]
    columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in fields)
    if as_json:
        result_types = {field.name: field.dataType.simpleString() for field in fields}
        body = {"query": job.query.name, "workers": job.query.workers, "checkpoint": str(job.checkpoint)}
        print(json.dumps({**body, "continues": used, "result": result_types}, indent=1))
        return
    print(f"{job.query.name}: {len(job.query.streams)} streams, {job.query.workers} workers: ready to run")
    print(f"checkpoint: {job.checkpoint} ({'continues where it stopped' if used else 'new'})")
    print(f"result: {columns}")


def has_run(checkpoint: str) -> bool:
    """Whether a query has begun there. This is the first look: a store that does not answer is found here."""
    from trimtab.offset_log import Checkpoint

    try:
        return Checkpoint(checkpoint).last_batch() is not None
    except OSError as error:
        raise InvalidInput(
            "checkpoint",
            checkpoint,
            f"cannot be read ({error})",
            "Spark and pyarrow must both reach it; pyarrow takes keys, region and address of an S3 store from "
            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_DEFAULT_REGION and AWS_ENDPOINT_URL.",
        ) from None


def _run(spark: SparkSession, job: JobFile, options: RunOptions, stop: StopRequest) -> None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from commands.runner.build import build_join, build_writer
    from commands.runner.failures import root_cause
    from commands.runner.sink_log import supersede_unfinished
    from split_union import progress

    with _redis(job, tell=options.progress) as url:
        fresh = not has_run(job.checkpoint)
        joined = build_join(spark, job, checkpoint=job.checkpoint, redis=url, fresh=fresh)
        path = job.sink.path if isinstance(job.sink, SinkPart) else None
        if path is not None and (batch := supersede_unfinished(job.checkpoint, path)) is not None:
            _note(f"batch {batch} was written but not committed when the driver died: it is written again")
        try:
            query = build_writer(joined, job).start()
            _watch(query, options, stop, joined.sources)
        except (PySparkException, Py4JError) as error:
            cause = without_secrets(root_cause(error), job.secrets())
            raise QueryFailed(f"query {job.query.name!r} failed: {cause}") from None
        finally:
            progress.forget(spark, job.query.name)


@contextlib.contextmanager
def _redis(job: JobFile, *, tell: bool) -> Iterator[str]:
    """The server that the file names; else one for this run, on the port where `trimtab serve` looks, if it is free."""
    from trimtab.defaults import DEFAULT_REDIS_PORT
    from trimtab.embedded import EmbeddedRedis
    from trimtab.embedded.redis_server import port_is_free

    if job.redis is not None:
        yield job.redis
        return
    with EmbeddedRedis(port=DEFAULT_REDIS_PORT if port_is_free(DEFAULT_REDIS_PORT) else None) as server:
        if tell:
            option = "" if server.port == DEFAULT_REDIS_PORT else f" --redis {server.url}"
            _note(f"no redis is named, so one runs at {server.url} until the end; to move load: trimtab serve{option}")
        yield server.url


def _watch(query: StreamingQuery, options: RunOptions, stop: StopRequest, sources: Sources) -> None:
    """Print progress until the query ends, a signal comes, or the time is over."""
    from commands.runner.progress import HEADER, ProgressReader

    reader = ProgressReader(query, sources)
    has_header = False

    def tell() -> int:
        nonlocal has_header
        for batch in reader.new():
            if options.progress:
                if not has_header and not options.as_json:
                    print(HEADER)
                has_header = True
                print(json.dumps(asdict(batch)) if options.as_json else batch.line(), flush=True)
        return reader.last_batch

    deadline = None if options.duration_s is None else time.monotonic() + options.duration_s
    while query.isActive and not stop and (deadline is None or time.monotonic() < deadline):
        tell()
        stop.wait(POLL_S)
    if query.isActive:
        if stop:
            _note("stopping after the current batch; press Ctrl-C again to stop at once")
        stop_query(query, tell)
        with contextlib.suppress(Exception):
            tell()
        return
    tell()
    query.awaitTermination()  # raises the error that ended it


def _note(text: str) -> None:
    print(f"trimtab: {text}", file=sys.stderr, flush=True)

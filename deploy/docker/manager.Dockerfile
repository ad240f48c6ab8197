# syntax=docker/dockerfile:1
# Manager and REST API: `trimtab serve`, and the commands that talk to it. No Spark, no JVM.
#
#   docker build -f deploy/docker/manager.Dockerfile -t trimtab/manager:0.1.0 .
#
# Pin the base by digest: --build-arg PYTHON_IMAGE=docker.io/library/python:3.12-slim-bookworm@sha256:...
ARG PYTHON_IMAGE=docker.io/library/python:3.12-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY deploy/docker/manager.lock ./
RUN python3 -m venv /opt/trimtab \
    && /opt/trimtab/bin/pip install --no-cache-dir --no-compile --require-hashes --only-binary :all: -r manager.lock
COPY pyproject.toml LICENSE ./
COPY trimtab trimtab
COPY split_union split_union
COPY worker worker
COPY plans plans
COPY balancing balancing
COPY manager manager
COPY api api
COPY commands commands
# The build backend is left behind with this stage; tests and headers of packages are of no use at run time.
RUN python3 -m venv /opt/tools \
    && /opt/tools/bin/pip install --no-cache-dir "setuptools>=77" wheel \
    && /opt/tools/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /src/dist . \
    && /opt/trimtab/bin/pip install --no-cache-dir --no-compile --no-deps /src/dist/trimtab-*.whl \
    && /opt/trimtab/bin/pip uninstall --yes pip \
    && find /opt/trimtab -type d \( -name tests -o -name __pycache__ -o -name include \) -prune -exec rm -rf {} +

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Trimtab manager" \
      org.opencontainers.image.description="Balances windowed stream joins on Spark while they run: manager and REST API" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/trimtab /opt/trimtab
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
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=6 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f\"http://127.0.0.1:{os.environ['TRIMTAB_SERVE_PORT']}/healthz\", timeout=4)"]
ENTRYPOINT ["trimtab"]
CMD ["serve"]

#!/usr/bin/env bash
# Resolves what the images need to the versions and hashes of requirements.lock. Run it after `make lock`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
for part in build manager spark; do
    .venv/bin/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 \
        --no-emit-index-url --no-emit-find-links --no-annotate --custom-compile-command deploy/docker/lock.sh \
        --constraint requirements.lock "deploy/docker/$part.in" -o "deploy/docker/$part.lock"
done

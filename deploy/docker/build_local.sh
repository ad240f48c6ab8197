#!/usr/bin/env bash
# Builds the manager's image where no registry can be reached: the base comes from Debian's packages.
# Needs root, buildah and debootstrap. Usage: deploy/docker/build_local.sh [TAG]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tag=${1:-localhost/trimtab/manager:local}
for tool in buildah debootstrap; do
    command -v "$tool" >/dev/null || { echo "$tool is missing: apt-get install buildah debootstrap" >&2; exit 1; }
done
export BUILDAH_ISOLATION=${BUILDAH_ISOLATION:-chroot} STORAGE_DRIVER=${STORAGE_DRIVER:-vfs}
if ! buildah inspect --type image localhost/trimtab-base >/dev/null 2>&1; then
    root=$(mktemp -d)
    # debootstrap leaves /proc mounted if it is interrupted.
    trap 'umount "$root/proc" 2>/dev/null; rm -rf --one-file-system "$root"' EXIT
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$root" >/dev/null
    ln -sf python3 "$root/usr/bin/python"
    rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale}/*
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$root" / >/dev/null
    buildah commit --quiet --rm "$container" localhost/trimtab-base >/dev/null
fi
buildah bud --quiet --layers=false -f deploy/docker/manager.Dockerfile \
    --build-arg PYTHON_IMAGE=localhost/trimtab-base --build-arg REVISION="$(git rev-parse HEAD)" -t "$tag" .
buildah images --format '{{.Name}}:{{.Tag}} {{.Size}}' "$tag"

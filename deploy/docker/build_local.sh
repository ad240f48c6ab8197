#!/usr/bin/env bash
# Builds the images where no registry can be reached: the base is made of Debian's packages.
#
#   deploy/docker/build_local.sh [manager] [spark]      both, if none is named
#
# Needs root, buildah and debootstrap. The images are localhost/trimtab/manager:local and localhost/trimtab/spark:local, in the
# store that buildah is set up for (CONTAINERS_STORAGE_CONF, STORAGE_DRIVER). Packages are kept in artifacts/images. pip is used as
# it is set up on this machine: its configuration and certificate authorities are mounted while building, and do not get into an image.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
(($#)) || set -- manager spark
for tool in buildah debootstrap; do
    command -v "$tool" >/dev/null || { echo "$tool is missing: apt-get install buildah debootstrap" >&2; exit 1; }
done
[[ $EUID == 0 ]] || { echo "debootstrap needs root." >&2; exit 1; }
suite=bookworm
base=localhost/trimtab/base:$suite
cache=$PWD/artifacts/images
mkdir -p "$cache/debs" "$cache/tmp"
# A container inside another one may not have what runc needs. buildah keeps fetched packages (RUN --mount=type=cache) below TMPDIR.
export BUILDAH_ISOLATION=${BUILDAH_ISOLATION:-chroot} TMPDIR=$cache/tmp

if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
    root=$(mktemp -d)
    # debootstrap leaves /proc mounted if it is interrupted.
    trap 'umount "$root/proc" 2>/dev/null; rm -rf --one-file-system "$root"' EXIT
    debootstrap --variant=minbase --cache-dir="$cache/debs" --include=ca-certificates,python3,python3-venv "$suite" "$root" \
        >"$cache/debootstrap.log" || { tail -n 20 "$cache/debootstrap.log" >&2; exit 1; }
    rm -rf "$root"/var/{cache/apt,lib/apt/lists,log}/* "$root"/usr/share/{info,locale,man}/*
    find "$root/usr/share/doc" -type f ! -name copyright -delete
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$root" / >/dev/null
    buildah commit --quiet --rm "$container" "$base" >/dev/null
fi

pip_setup=()
certificates=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
if [[ -f $certificates ]]; then
    pip_setup+=(--volume "$certificates:$certificates:ro" --build-arg PIP_CERT="$certificates")
fi
for configuration in "${PIP_CONFIG_FILE:-}" ~/.config/pip/pip.conf /etc/pip.conf; do
    [[ -f $configuration ]] && { pip_setup+=(--volume "$configuration:/etc/pip.conf:ro"); break; }
done
for image; do
    # Docker's format: OCI's has no health check.
    buildah bud --quiet --format docker --layers -f "deploy/docker/$image.Dockerfile" "${pip_setup[@]}" \
        --build-arg PYTHON_IMAGE="$base" --build-arg REVISION="$(git rev-parse HEAD)" \
        -t "localhost/trimtab/$image:local" . >/dev/null
    buildah images --format '{{.Name}}:{{.Tag}} {{.Size}}' "localhost/trimtab/$image:local"
done

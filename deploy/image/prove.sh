#!/bin/sh
# Builds the image without a container daemon and proves it: read-only, without capabilities, it must
# answer an embedding and its health, and lose no request when it is stopped under load.
# Needs root, buildah and runc (Debian: apt install buildah runc). Prints the result as JSON.
#   deploy/image/prove.sh [RESULT.json]
# From the environment:
#   PYTHON_IMAGE  the base image; "debootstrap" makes one from Debian's archive (apt install debootstrap)
#   DEBIAN        the archive for it (default: http://deb.debian.org/debian)
#   PIP_CONFIG, CERTIFICATES  files that the build reads as secrets
#   BUILD_ARGS    more arguments for buildah, for example --volume /opt/wheels:/opt/wheels:ro
set -eu
cd "$(dirname "$0")/../.."
result=${1:-/dev/stdout}
base=${PYTHON_IMAGE:-python:3.11-slim-bookworm}
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER="${STORAGE_DRIVER:-vfs}"
work=$(mktemp -d)
container=
finish() {
    if [ -n "$container" ]; then buildah umount "$container" >/dev/null; buildah rm "$container" >/dev/null; fi
    rm -rf "$work"
}
trap finish EXIT

if [ "$base" = debootstrap ]; then
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm \
        "$work/base" "${DEBIAN:-http://deb.debian.org/debian}" >"$work/debootstrap.log" 2>&1 \
        || { cat "$work/debootstrap.log" >&2; exit 1; }
    scratch=$(buildah from scratch)
    buildah add --quiet "$scratch" "$work/base" / >/dev/null
    base=localhost/lln-base:bookworm
    buildah commit --quiet --rm "$scratch" "$base" >/dev/null
    rm -rf "$work/base"
fi

set -- ${BUILD_ARGS:-}
if [ -n "${PIP_CONFIG:-}" ]; then set -- "$@" --secret "id=pip,src=$PIP_CONFIG"; fi
if [ -n "${CERTIFICATES:-}" ]; then set -- "$@" --secret "id=certificates,src=$CERTIFICATES"; fi
started=$(date +%s)
# Docker's format keeps HEALTHCHECK.
buildah build "$@" --format docker --build-arg "PYTHON_IMAGE=$base" \
    --build-arg "REVISION=$(git rev-parse HEAD)" --tag localhost/lln:proof . >&2
seconds=$(($(date +%s) - started))

container=$(buildah from localhost/lln:proof)
root=$(buildah mount "$container")
python3 deploy/image/prove.py --root "$root" --work "$work" --build-seconds "$seconds" \
    --base "$base" --revision "$(git rev-parse HEAD)" >"$work/result.json"
cat "$work/result.json" >"$result"

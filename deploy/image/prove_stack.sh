#!/bin/sh
# Brings deploy/compose.yaml up without a container daemon and proves it: the server answers,
# Prometheus scrapes it and has its rules, Alertmanager is told when it is stopped, and no longer when
# it is back. Needs root, podman, podman-compose and runc (Debian: apt install podman podman-compose
# runc), and the image that prove.sh has built. Prints the result as JSON.
#   deploy/image/prove_stack.sh [RESULT.json]
# From the environment:
#   PACKAGES=debian  makes the images of Prometheus and Alertmanager from Debian's packages, on the
#                    base that prove.sh made with debootstrap. Debian has no Grafana: it is left out.
set -eu
cd "$(dirname "$0")/../.."
result=${1:-/dev/stdout}
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER="${STORAGE_DRIVER:-vfs}"
work=$(mktemp -d)
set -- --project-name lln -f deploy/compose.yaml
started=
finish() {
    if [ -n "$started" ]; then podman-compose "$@" down --volumes >"$work/down.log" 2>&1 || cat "$work/down.log" >&2; fi
    rm -rf "$work"
}
trap 'finish "$@"' EXIT

# runc, since crun refuses hosts that have both versions of control groups; and limits that a root
# without CAP_SYS_RESOURCE may set.
if [ -z "${CONTAINERS_CONF:-}" ]; then
    export CONTAINERS_CONF="$work/containers.conf"
    cat >"$CONTAINERS_CONF" <<END
[containers]
default_ulimits = ["nofile=1024:$(ulimit -Hn)", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
END
fi

services="lln prometheus alertmanager grafana"
if [ "${PACKAGES:-}" = debian ]; then
    services="lln prometheus alertmanager"
    for name in prometheus prometheus-alertmanager; do
        if buildah inspect --type image "localhost/$name:debian" >/dev/null 2>&1; then continue; fi
        container=$(buildah from localhost/lln-base:bookworm)
        buildah run "$container" sh -c "apt-get -q update && \
            DEBIAN_FRONTEND=noninteractive apt-get -q install --yes --no-install-recommends $name" \
            >"$work/$name.log" 2>&1 || { cat "$work/$name.log" >&2; exit 1; }
        buildah commit --quiet --rm "$container" "localhost/$name:debian" >/dev/null
    done
    set -- "$@" -f deploy/image/compose.debian.yaml
fi

podman tag localhost/lln:proof localhost/lln:0.1.0
started=yes
# shellcheck disable=SC2086  # a list of words
podman-compose "$@" up --detach --no-build $services >"$work/up.log" 2>&1 || { cat "$work/up.log" >&2; exit 1; }
python3 deploy/image/prove_stack.py --revision "$(git rev-parse HEAD)" $services >"$work/result.json" \
    || { cat "$work/result.json" "$work/up.log"; podman ps --all; podman logs lln_lln_1 | tail -20; podman logs lln_prometheus_1 | tail -20; exit 1; } >&2
cat "$work/result.json" >"$result"

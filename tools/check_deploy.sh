#!/bin/sh
# What deploy/ holds, checked by the tools that will read it. Nothing of it needs a network.
#   tools/check_deploy.sh VENV
set -eu
cd "$(dirname "$0")/.."
bin=$1/bin

"$bin/python" -m check_jsonschema --builtin-schema vendor.compose-spec deploy/compose*.yaml
"$bin/python" -m deploy.grafana.build --check
"$bin/python" -m deploy.prometheus.build --check
"$bin/hadolint" Dockerfile
# Resources of the Prometheus operator have no schema there.
for version in 1.25.0 latest; do  # the oldest that docs/operations.md names, and the newest
    if [ "$version" = latest ]; then set --; else set -- --kubernetes-version "$version"; fi
    "$bin/kubernetes-validate" --strict --quiet "$@" deploy/kubernetes/*.yaml \
        deploy/kubernetes/queue-scaling/*.yaml deploy/kubernetes/tracing/*.yaml
done

if command -v promtool >/dev/null; then
    promtool check config deploy/prometheus/prometheus.yml
    promtool test rules deploy/prometheus/tests/rules.yml deploy/prometheus/tests/drift.yml
else
    echo "promtool is not here (Debian: apt install prometheus): alert rules were not checked" >&2
fi

if command -v amtool >/dev/null; then
    amtool check-config deploy/prometheus/alertmanager.yml
else
    echo "amtool is not here (Debian: apt install prometheus-alertmanager): its file was not checked" >&2
fi

#!/usr/bin/env bash
# Runs the stack of compose.yaml without containers: the server, Prometheus, and Alertmanager and
# Grafana if they are installed.
#   deploy/run_stack.sh [DATA_FOLDER]     Ctrl-C stops all of them
# Install Prometheus and Alertmanager with apt, Grafana by grafana.com/docs. Ports are those of
# compose.yaml; change them with PROMETHEUS_PORT, ALERTMANAGER_PORT, GRAFANA_PORT and the LLN_ settings.
# LLN is the command, by default .venv/bin/lln.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
data=${1:-"$root/.cache/stack"}
http_port=${LLN_HTTP_PORT:-8000}
prometheus_port=${PROMETHEUS_PORT:-9090}
alertmanager_port=${ALERTMANAGER_PORT:-9093}
grafana_port=${GRAFANA_PORT:-3000}
lln=${LLN:-"$root/.venv/bin/lln"}

command -v "$lln" >/dev/null || { echo "no $lln: run 'make serve' once, or set LLN" >&2; exit 1; }
command -v prometheus >/dev/null || { echo "no prometheus: apt install prometheus" >&2; exit 1; }
mkdir -p "$data/prometheus" "$data/grafana"

started=()
# shellcheck disable=SC2317  # called by the trap
finish() {
    trap - EXIT INT TERM
    for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait
}
trap finish EXIT INT TERM

"$lln" serve &
started+=($!)

# The deployed configuration with local addresses, and the rules next to it.
sed -e "s/\"lln:8000\"/\"127.0.0.1:$http_port\"/" \
    -e "s/\"alertmanager:9093\"/\"127.0.0.1:$alertmanager_port\"/" \
    "$root/deploy/prometheus/prometheus.yml" >"$data/prometheus.yml"
ln -sfn "$root/deploy/prometheus/rules" "$data/rules"
# Debian gives it the longer name.
if alertmanager=$(command -v alertmanager || command -v prometheus-alertmanager); then
    "$alertmanager" --config.file="$root/deploy/prometheus/alertmanager.yml" \
        --storage.path="$data/alertmanager" --cluster.listen-address= \
        --web.listen-address="127.0.0.1:$alertmanager_port" --log.level=warn &
    started+=($!)
    echo "Alertmanager: http://localhost:$alertmanager_port"
else
    sed -i '/^alerting:/,/^$/d' "$data/prometheus.yml"
    echo "Alertmanager is not installed; Prometheus lists the alerts itself"
fi
prometheus --config.file="$data/prometheus.yml" --storage.tsdb.path="$data/prometheus" \
    --web.listen-address="127.0.0.1:$prometheus_port" --log.level=warn &
started+=($!)
echo "server: http://localhost:$http_port   Prometheus: http://localhost:$prometheus_port"

if command -v grafana >/dev/null; then
    provisioning=$data/provisioning
    dashboards=$(sed 's/[&#\]/\\&/g' <<<"$root/deploy/grafana/dashboards")  # escaped for sed
    cp -r "$root/deploy/grafana/provisioning" "$data/"
    sed -i "s#http://prometheus:9090#http://127.0.0.1:$prometheus_port#" "$provisioning"/datasources/*.yaml
    sed -i "s#/etc/grafana/dashboards#'$dashboards'#" "$provisioning"/dashboards/*.yaml
    GF_PATHS_PROVISIONING=$provisioning GF_PATHS_DATA=$data/grafana GF_SERVER_HTTP_PORT=$grafana_port \
        GF_AUTH_ANONYMOUS_ENABLED=true GF_AUTH_ANONYMOUS_ORG_ROLE=Viewer \
        grafana server --homepath "${GRAFANA_HOME:-/usr/share/grafana}" >"$data/grafana.log" 2>&1 &
    started+=($!)
    echo "Grafana: http://localhost:$grafana_port"
else
    echo "Grafana is not installed; its dashboards are in deploy/grafana/dashboards"
fi

# When one of them ends, stop the others.
wait -n

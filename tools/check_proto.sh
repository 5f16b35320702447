#!/bin/sh
# Fails when service/pb is not what proto/ generates. Writes only to a temporary folder.
#   tools/check_proto.sh VENV
set -eu
cd "$(dirname "$0")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
"$1/bin/python" -m grpc_tools.protoc -I service/pb=proto --python_out="$fresh" \
    --pyi_out="$fresh" --grpc_python_out="$fresh" proto/*/v1/*.proto
if ! diff -r -q -x __pycache__ "$fresh/service/pb" service/pb; then
    echo "service/pb is out of date: run 'make proto' and commit what it writes" >&2
    exit 1
fi

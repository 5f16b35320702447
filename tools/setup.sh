#!/bin/sh
# Makes the virtual environment if there is none, then installs one profile into it.
#   tools/setup.sh VENV PROFILE [--torch auto|cpu|cuda]
# The Python it is made with: $PYTHON if set, else the first one found that is new enough.
set -eu
cd "$(dirname "$0")/.."
venv=$1
shift

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        set -- "$PYTHON"
    else
        set -- python3 python3.13 python3.12 python3.11 python
    fi
    for candidate; do
        if is_new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "LLN needs Python 3.11 or newer and found none (set PYTHON=/path/to/python to name one)" >&2
    return 1
}

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    "$python" -m venv --clear "$venv" || {
        echo "$python cannot make a virtual environment (Debian and Ubuntu: apt install python3-venv)" >&2
        exit 1
    }
fi
exec "$venv/bin/python" tools/install.py "$@"

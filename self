#!/bin/sh
# The `self` command of this checkout; the first use sets everything up.
set -eu
root=$(dirname -- "$(readlink -f -- "$0")")
. "$root/tools/environment.sh"
prepare runtime
exec "$root/.venv/bin/self" "$@"

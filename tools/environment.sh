# Read by ./self and ./test: makes .venv fit for use. Needs $root, the folder of the checkout.
#
# `prepare runtime` or `prepare dev` returns at once when the environment is as the files ask for;
# the record of that is .venv/NAME.stamp, which tools/setup.py writes last.

fail() {
    echo "Error [setup]: $1" >&2
    exit 1
}

checksum() {
    {
        cat "$root"/requirements/*.txt "$root/pyproject.toml" "$root/tools/setup.py"
        cat "$root/tools/build_kernels.py" "$root"/kernels/*.cpp "$root"/kernels/*.h
        echo "$root"
    } | cksum
}

find_python() {
    for candidate in "${PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    fail "Python 3.11 or newer is needed; on Debian 12: apt install python3 python3-venv"
}

prepare() {
    wanted=$(checksum)
    python=$(readlink -f "$root/.venv/bin/python" 2>/dev/null) || python=
    if [ -x "$python" ] && [ "$(cat "$root/.venv/$1.stamp" 2>/dev/null)" = "$python $wanted" ]; then
        return
    fi
    python=$(find_python)
    "$python" "$root/tools/setup.py" "$1" "$wanted" </dev/null
}

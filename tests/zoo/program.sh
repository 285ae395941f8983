# shellcheck shell=bash
# What a program of the zoo may use (scripts/zoo sources this, then the program's file). A program's file defines
#
#   prepare    installs the program; cheap when that is done. Files that it makes stay in $CACHE (target/zoo/NAME)
#   version    prints the version of the program
#   run        runs the whole of it, client and server, in the empty folder $PWD, and prints what must not change
#
# and may set LIMIT, the seconds that a run may take (120). What `run` prints on standard error goes to a log; times, ports
# and process ids must not be printed. A run fails by its exit status (`set -eu -o pipefail` holds).
# For files $PWD is the mounted directory, for MPI `ranks N COMMAND…` starts a job.

LIMIT=120

# --- prepare ---------------------------------------------------------------------------------------------------------
packages() { # packages PACKAGE…: of Debian; servers are not started
    local have missing
    # shellcheck disable=SC2016
    have=$(dpkg-query -W -f '${binary:Package} ${db:Status-Status}\n' "$@" 2>/dev/null | awk '$2 == "installed" { sub(/:.*/, "", $1); print $1 }') || true
    missing=$(printf '%s\n' "$@" | grep -vxF -e "${have:-none}" || true)
    [ -n "$missing" ] || return 0
    # shellcheck disable=SC2086
    as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends $missing
}
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

once() { # once WORD COMMAND…: unless it has succeeded before with this WORD (a version)
    [ "$(cat "$CACHE/$1.stamp" 2>/dev/null)" = "$*" ] && return 0
    (cd "$CACHE" && "${@:2}") && printf '%s' "$*" >"$CACHE/$1.stamp"
}
wheels() { # wheels REQUIREMENT…: a virtual environment $CACHE/venv; `python` is its interpreter then
    once wheels make_venv "$@"
}
make_venv() { python3 -m venv --clear venv && venv/bin/python -m pip install -q --disable-pip-version-check "$@"; }
modules() { # modules PACKAGE@VERSION…: of npm, in $CACHE/node_modules
    once modules npm install --silent --no-fund --no-audit --prefix "$CACHE" "$@"
}
jars() { # jars GROUP:NAME:VERSION…: with what they need, in $CACHE/jars
    once jars fetch_jars "$@"
}
fetch_jars() {
    local one
    {
        printf '<project><modelVersion>4.0.0</modelVersion><groupId>zoo</groupId><artifactId>zoo</artifactId><version>1</version><dependencies>'
        for one in "$@"; do
            # shellcheck disable=SC2046
            printf '<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version></dependency>' $(tr : ' ' <<<"$one")
        done
        printf '</dependencies></project>'
    } >pom.xml
    mvn -B -q dependency:copy-dependencies -DoutputDirectory=jars
}
go_program() { # go_program MODULE@VERSION…: $HERE.go, linked with the C library, as $CACHE/program
    once go_program build_go "$@"
}
build_go() {
    rm -rf go && mkdir go && cp "$HERE.go" go/main.go
    (cd go && go mod init zoo && { [ $# = 0 ] || go get "$@"; } && go mod tidy && CGO_ENABLED=1 go build -o ../program .)
}

# --- version ---------------------------------------------------------------------------------------------------------
package_version() { dpkg-query -W -f '${Version}' "$1" | sed 's/^[0-9]*://; s/[-+].*//'; }
wheel_version() { "$CACHE/venv/bin/python" -c "import importlib.metadata as m; print(m.version('$1'))"; }
module_version() { node -p "require('$CACHE/node_modules/$1/package.json').version"; }

# --- run -------------------------------------------------------------------------------------------------------------
# Python without the script's folder in front: a program's file may be named as a module.
python() { PYTHONSAFEPATH=1 "$CACHE/venv/bin/python" "$@"; }
free_port() { # another one each time
    /usr/bin/python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
server() { # server COMMAND…: in the background, without output; ended by `stop_servers`, which the end of the run does, too
    "$@" >&2 </dev/null &
    SERVERS="${SERVERS:-} $!"
}
stop_servers() {
    local pid
    for pid in ${SERVERS:-}; do kill "$pid" 2>/dev/null || true; done
    for pid in ${SERVERS:-}; do wait "$pid" 2>/dev/null || true; done
    SERVERS=
}
await() { # await COMMAND…: until it succeeds, for 40 s
    local end=$((SECONDS + 40))
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || { echo "not within 40 s: $*" >&2; return 1; }
        sleep 0.1
    done
}
listening() { # listening PORT: asks the kernel, so that no connection is made
    grep -qi "$(printf ':%04X 00000000:0000 0A\|:%04X 0\{32\}:0000 0A' "$1" "$1")" /proc/net/tcp /proc/net/tcp6
}
numbers() { # numbers BYTES: the same bytes each time, hardly compressible
    /usr/bin/python3 -c 'import random, sys; random.seed(7); n = int(sys.argv[1])
while n > 0: sys.stdout.buffer.write(random.randbytes(min(n, 1 << 20))); n -= 1 << 20' "$1"
}
sum() { sha256sum "$@" | cut -c 1-16; }
ordinary_user() { # ordinary_user COMMAND…: as the user daemon where this is root, for servers that refuse root
    if [ "$(id -u)" = 0 ]; then setpriv --reuid daemon --regid daemon --clear-groups "$@"; else "$@"; fi
}
ranks() { # ranks N COMMAND…: Open MPI of Debian on this host
    local n=$1
    shift
    mpirun --allow-run-as-root --oversubscribe -n "$n" "$@"
}

# shellcheck shell=bash
# Named steps with progress, logs and one clear word on failure. Sourced (bash) by the scripts beside it; runs nothing.
#
#   steps_begin "title" [--keep-going]   start a sequence
#   add_step "name" function [limit_s]   queue one step
#   steps_dispatch "$@"                  once, after the script's functions: a step is the script itself, run again as
#                                        `SCRIPT --step FUNCTION`, because errexit is off inside anything tested
#   run_steps                            run them: "[n/m] name … ok (1.2 s)"; returns 1 if any failed
#
# A step skips itself with `skip "reason"` (loud, never an error). Its output goes to target/logs/STEP.log, and to the
# terminal as well when V=1. After run_steps: STEPS_FAILED and STEPS_SKIPPED hold names, one a line.

export LC_ALL=C
unset MAKEFLAGS MFLAGS MAKELEVEL # a make or cargo started by a step is not part of the outer make
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TARGET=${CARGO_TARGET_DIR:-target}
case $TARGET in /*) ;; *) TARGET=$ROOT/$TARGET ;; esac
LOGS=$TARGET/logs
VERBOSE=${V:-0}
SKIP_STATUS=77

# rustup puts cargo where a login shell finds it; a plain `make` need not have seen that shell.
if ! command -v cargo >/dev/null 2>&1 && [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
    PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
fi
# `ip`, `ldconfig` and their like are not in an ordinary user's path on Debian.
case :$PATH: in *:/usr/sbin:*) ;; *) PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin ;; esac
export PATH

say() { printf '%s\n' "$*"; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# Called inside a step: ends it as skipped. The reason is the last line of the step's log.
skip() { printf 'SKIP %s\n' "$*"; exit $SKIP_STATUS; }

step_log() { printf '%s/%s.log' "$LOGS" "$(printf '%s' "$1" | tr -cs 'A-Za-z0-9' '-')"; }

steps_dispatch() {
    if [ "${1:-}" = --step ]; then
        "$2"
        exit 0
    fi
}

now_us() { printf '%s' "${EPOCHREALTIME/./}"; }

# seconds A_US B_US -> "1.2"
seconds() { local t=$((($2 - $1) / 100000)); printf '%d.%d' $((t / 10)) $((t % 10)); }

steps_begin() {
    STEP_NAMES=() STEP_FUNCTIONS=() STEP_LIMITS=() STEPS_FAILED='' STEPS_SKIPPED='' STEP_LOG=''
    STEPS_TITLE=$1 STEPS_KEEP_GOING=${2:-}
    mkdir -p "$LOGS" 2>/dev/null || die "cannot write $LOGS (was an earlier run made by another user? chown or remove it)"
}

add_step() {
    STEP_NAMES+=("$1") STEP_FUNCTIONS+=("$2") STEP_LIMITS+=("${3:-3600}")
}

run_steps() {
    local i total=${#STEP_NAMES[@]}
    [ -z "$STEPS_TITLE" ] || say "$STEPS_TITLE"
    for ((i = 0; i < total; i++)); do
        run_one $((i + 1)) "$total" "${STEP_NAMES[i]}" "${STEP_FUNCTIONS[i]}" "${STEP_LIMITS[i]}" && continue
        [ -n "$STEPS_KEEP_GOING" ] || return 1
    done
    [ -z "$STEPS_FAILED" ]
}

run_one() {
    local prefix="[$1/$2] $3" name=$3 function=$4 limit=$5 status=0 start end
    STEP_LOG=$(step_log "$name")
    : >"$STEP_LOG" 2>/dev/null || die "cannot write $STEP_LOG (was an earlier run made by another user?)"
    start=$(now_us)
    if [ "$VERBOSE" = 1 ]; then say "$prefix …"; else printf '%s … ' "$prefix"; fi

    STEP_TICKER=''
    set -m # a process group of its own, so that an interrupted or overdue step ends with all its children
    if [ "$VERBOSE" = 1 ]; then
        (set +m -o pipefail; bash -eu "$0" --step "$function" 2>&1 </dev/null | tee "$STEP_LOG") &
    else
        bash -eu "$0" --step "$function" >"$STEP_LOG" 2>&1 </dev/null &
    fi
    STEP_PID=$!
    set +m
    trap 'end_step INT 130' INT
    trap 'end_step TERM 143' TERM
    trap 'end_step TERM 129' HUP
    watch_step "$prefix" "$STEP_PID" "$limit" "$STEP_LOG" &
    STEP_TICKER=$!
    wait "$STEP_PID" 2>/dev/null || status=$?
    if kill "$STEP_TICKER" 2>/dev/null; then wait "$STEP_TICKER" 2>/dev/null || true; fi
    trap - INT TERM HUP
    end=$(now_us)

    if [ -t 1 ] && [ "$VERBOSE" != 1 ]; then printf '\r\033[K'; fi
    if [ -t 1 ] || [ "$VERBOSE" = 1 ]; then printf '%s … ' "$prefix"; fi
    case $status in
        0) say "ok ($(seconds "$start" "$end") s)" ;;
        "$SKIP_STATUS")
            say "SKIPPED: $(tail -n 1 "$STEP_LOG" | sed 's/^SKIP //')"
            STEPS_SKIPPED+="$name"$'\n' ;;
        *)
            say "FAILED ($(seconds "$start" "$end") s)"
            STEPS_FAILED+="$name"$'\n'
            if [ "$VERBOSE" != 1 ]; then show_failure "$STEP_LOG"; fi
            say "step '$name' failed (status $status); full log: ${STEP_LOG#"$ROOT"/}"
            return 1 ;;
    esac
}

# What a reader wants of a log: the failed tests of every runner if there are any, else its end.
show_failure() {
    local failures
    failures=$(awk '/^failures:$/ { on = 1 } on { print } /^test result:/ { on = 0 }' "$1" | head -n 200)
    if [ -n "$failures" ]; then printf '%s\n' "$failures"; else tail -n 40 "$1"; fi | sed 's/^/    | /'
}

# Asks a process group to end and insists after ten seconds: a package manager needs a moment to leave things whole.
end_group() {
    local i
    kill -s "$1" -- "-$2" 2>/dev/null || return 0
    for ((i = 0; i < 100; i++)); do
        sleep 0.1 >/dev/null 2>&1
        kill -s 0 -- "-$2" 2>/dev/null || return 0
    done
    kill -s KILL -- "-$2" 2>/dev/null
}

end_step() {
    trap - INT TERM HUP
    kill "$STEP_TICKER" 2>/dev/null || true
    end_group "$1" "$STEP_PID" || true
    printf '\ninterrupted; log so far: %s\n' "${STEP_LOG#"$ROOT"/}" >&2
    exit "$2"
}

# Elapsed time and the newest line of the log while a step runs; ends the step's process group when it is overdue.
watch_step() {
    local waited=0 line
    trap - INT TERM HUP
    while sleep 1 >/dev/null 2>&1; do
        waited=$((waited + 1))
        if [ "$waited" -ge "$3" ]; then
            say "time limit of $3 s reached" >>"$4"
            end_group TERM "$2"
            return
        fi
        [ "$VERBOSE" = 1 ] && continue
        line=$(tail -n 1 "$4" | tr -cd '[:print:]' | cut -c 1-60)
        if [ -t 1 ]; then
            printf '\r\033[K%s … %d s  %s' "$1" "$waited" "$line"
        elif [ $((waited % 60)) = 0 ]; then
            printf '\n      %d s: %s … ' "$waited" "$line"
        fi
    done
}

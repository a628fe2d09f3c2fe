#!/bin/sh
# A Docker engine for the container tests: `.ci/engine.sh start`, `.ci/engine.sh stop`.
#
# Uses an engine that answers already. Otherwise it installs Debian's docker.io and docker-compose where they are
# missing, starts dockerd, and remembers its pid; `stop` ends that one and no other.
set -eu

state=${TENURE_ENGINE_STATE:-/var/tmp/tenure-engine}
pid_file=$state/dockerd.pid
ready_s_max=60
stop_s_max=60

install_missing() {
    packages=""
    command -v dockerd >/dev/null || packages="$packages docker.io"
    command -v docker-compose >/dev/null || docker compose version >/dev/null 2>&1 || packages="$packages docker-compose"
    command -v debootstrap >/dev/null || packages="$packages debootstrap"
    [ -z "$packages" ] && return
    apt-get update -qq
    # shellcheck disable=SC2086 - a list of words
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $packages >/dev/null
}

start() {
    install_missing
    if docker info >/dev/null 2>&1; then
        echo "a Docker engine answers already"
        return
    fi
    mkdir -p "$state"
    nohup dockerd --data-root "$state/data" --exec-root "$state/run" --pidfile "$pid_file" >"$state/dockerd.log" 2>&1 &
    waited_s=0
    until docker info >/dev/null 2>&1; do
        waited_s=$((waited_s + 1))
        if [ "$waited_s" -gt "$ready_s_max" ]; then
            tail -n 20 "$state/dockerd.log" >&2
            exit 1
        fi
        sleep 1
    done
    echo "dockerd started, pid $(cat "$pid_file")"
}

stop() {
    [ -f "$pid_file" ] || return 0
    pid=$(cat "$pid_file")
    kill "$pid" 2>/dev/null || true
    waited_s=0
    while [ -d "/proc/$pid" ] && ! grep -q '^State:.*Z' "/proc/$pid/status" 2>/dev/null; do
        waited_s=$((waited_s + 1))
        [ "$waited_s" -gt "$stop_s_max" ] && { echo "dockerd $pid does not end" >&2; exit 1; }
        sleep 1
    done
    rm -f "$pid_file"
    echo "dockerd $pid stopped"
}

case "${1:-}" in
    start) start ;;
    stop) stop ;;
    *) echo "usage: $0 start|stop" >&2; exit 2 ;;
esac

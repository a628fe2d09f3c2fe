#!/bin/sh
# What the official image's entrypoint does, as far as Tenure and its tests use it: POSTGRES_USER, POSTGRES_DB and
# POSTGRES_PASSWORD (or its _FILE) name what a new cluster gets; then the command runs in our place.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    user=${POSTGRES_USER:-postgres}
    database=${POSTGRES_DB:-$user}
    password=${POSTGRES_PASSWORD:-$(cat "${POSTGRES_PASSWORD_FILE:?no password given}")}
    mkdir -p "$PGDATA"
    printf '%s\n' "$password" >/tmp/pw
    initdb -D "$PGDATA" -U "$user" --pwfile=/tmp/pw --auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8 --locale=C
    rm /tmp/pw
    printf 'host all all all scram-sha-256\n' >>"$PGDATA/pg_hba.conf"
    printf "listen_addresses = '*'\nunix_socket_directories = '/var/run/postgresql'\n" >>"$PGDATA/postgresql.conf"
    pg_ctl -D "$PGDATA" -w -o "-c listen_addresses=" start
    [ "$database" = postgres ] || createdb -U "$user" "$database"
    pg_ctl -D "$PGDATA" -w -m fast stop
fi
exec "$@"

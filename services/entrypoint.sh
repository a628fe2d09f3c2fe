#!/bin/sh
# Give the command its secrets: for each name below, NAME_FILE names a file whose text becomes NAME.
set -eu
for name in TENURE_POSTGRES_DSN TENURE_NATS_PASSWORD; do
    eval "file=\${${name}_FILE:-}"
    if [ -n "$file" ]; then
        value=$(cat "$file")
        export "$name=$value"
    fi
    unset "${name}_FILE"
done
exec "$@"

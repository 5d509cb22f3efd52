#!/usr/bin/env bash
# Make a base image (Debian bookworm, Python 3.11, ssh) from Debian's own packages, for machines that reach no
# image registry. Needs root, debootstrap and a Docker engine. Then: docker build --build-arg BASE=slipway-base …
#   deploy/images/base.sh [name]      SLIPWAY_DEBIAN_MIRROR: the mirror, when the default one isn't the right one
set -euo pipefail
name=${1:-slipway-base:bookworm}
mirror=${SLIPWAY_DEBIAN_MIRROR:-}
suite=bookworm
packages=ca-certificates,openssh-client,python3,python3-venv

[ "$(id -u)" = 0 ] || { echo "base.sh: debootstrap needs root" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "base.sh: install debootstrap first (apt install debootstrap)" >&2; exit 1; }
docker version >/dev/null 2>&1 || { echo "base.sh: no Docker engine answers; start one, or set DOCKER_HOST" >&2; exit 1; }

root=$(mktemp -d)
trap 'rm -rf --one-file-system "$root"' EXIT
# debootstrap takes its default mirror when the argument is left out, not when it is empty.
debootstrap --variant=minbase --include="$packages" "$suite" "$root" ${mirror:+"$mirror"}
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/doc/* "$root"/usr/share/man/*
tar --numeric-owner -C "$root" -c . | docker import --change 'CMD ["python3"]' - "$name"

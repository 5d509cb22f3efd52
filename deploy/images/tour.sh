#!/bin/sh
# A first look at a fresh deployment, as its users type it. Run it in the command line's container:
#   docker compose run --rm cli sh deploy/images/tour.sh
set -eu
say() { printf '\n$ %s\n' "$*"; "$@"; }
say slipway whoami
say slipway machines list
say slipway machines enrol --rack r1 --wait
say slipway machines list --state AVAILABLE
ssh-keygen -q -t ed25519 -N '' -C tour -f /tmp/tour-key
say slipway --context alice whoami
say slipway --context alice clusters create tour --profile h100-sxm-8 --nodes 2 --key /tmp/tour-key.pub --wait
say slipway --context alice clusters show tour

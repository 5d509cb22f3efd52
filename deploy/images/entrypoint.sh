#!/bin/sh
# Run a part with the settings that `deploy.images.init` wrote for it alone. Without that file (Kubernetes, another
# secret store) the environment is taken as it is.
set -eu
if [ -f /config/environment ]; then
  set -a
  . /config/environment
  set +a
fi
exec "$@"

"""Secrets from environment variables: bmc/fra1-r1-gpu-01 is SLIPWAY_SECRET_BMC__FRA1_R1_GPU_01.

For containers whose platform injects secrets. Two references that would share a variable (a-b and a.b) are told
apart by nobody, so references with dots are refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from services.satellite.adapters.secret_file import check_ref
from services.satellite.errors import Failure

PREFIX = "SLIPWAY_SECRET_"


class EnvironmentSecrets:
    """The store in `environment` (default: this process's)."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment

    def get(self, ref: str) -> bytes:
        """The secret; raises Failure "secret_missing" naming the variable that is not set."""
        if "." in check_ref(ref) or "_" in ref:
            raise Failure("secret_missing", f"{ref!r} can't be kept in the environment: use a-z, 0-9, - and / only.")
        name = PREFIX + ref.replace("/", "__").replace("-", "_").upper()
        value = self._environment.get(name, "")
        if not value:
            raise Failure("secret_missing", f"The environment variable {name} is not set.", "Set it and restart.")
        return value.encode()

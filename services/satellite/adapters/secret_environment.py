"""Secrets from environment variables: bmc/fra1-r1-gpu-01 is SLIPWAY_SECRET_BMC__FRA1_R1_GPU_01.

For containers whose platform injects secrets, as JSON objects. Nothing can be written there, so credentials of such a
site are rotated by its platform. Two references that would share a variable (a-b and a.b) are told apart by nobody, so
references with dots are refused.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

from services.satellite.adapters.secret_refs import check_ref, parsed_fields
from services.satellite.errors import Failure
from services.satellite.ports import Secret

PREFIX = "SLIPWAY_SECRET_"


class EnvironmentSecrets:
    """The store in `environment` (default: this process's)."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment

    async def read(self, ref: str) -> Secret:
        """See the port; raises Failure "secret_missing" naming the variable that is not set."""
        value = self.get(ref)
        return Secret(parsed_fields(ref, value), hashlib.sha256(value).hexdigest()[:16])

    async def write(self, ref: str, fields: Mapping[str, str], *, replaces: str | None) -> str:
        """Always refused."""
        raise _read_only(ref)

    async def refs(self, prefix: str = "") -> tuple[str, ...]:
        """See the port. An underscore in a variable may have been a hyphen only."""
        names = (name.removeprefix(PREFIX) for name in self._environment if name.startswith(PREFIX))
        found = (name.lower().replace("__", "/").replace("_", "-") for name in names)
        return tuple(sorted(ref for ref in found if ref.startswith(prefix)))

    async def remove(self, ref: str) -> None:
        """Refused, unless it is not there."""
        try:
            self.get(ref)
        except Failure:
            return
        raise _read_only(ref)

    def get(self, ref: str) -> bytes:
        """The variable's value; raises Failure "secret_missing"."""
        if "." in check_ref(ref) or "_" in ref:
            raise Failure("secret_missing", f"{ref!r} can't be kept in the environment: use a-z, 0-9, - and / only.")
        name = PREFIX + ref.replace("/", "__").replace("-", "_").upper()
        value = self._environment.get(name, "")
        if not value:
            raise Failure("secret_missing", f"The environment variable {name} is not set.", "Set it and restart.")
        return value.encode()


def _read_only(ref: str) -> Failure:
    return Failure(
        "secret_read_only",
        f"{ref!r} comes from the environment, where nothing can be written.",
        "Change it in the platform that injects it, or keep the site's secrets in a store that can be written.",
    )

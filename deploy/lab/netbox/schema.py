"""NetBox's empty database: restored from a dump in seconds, since migrating from nothing takes minutes.

The dump for the pinned version lies beside this file and is made by `python -m deploy.lab.netbox dump`
from a database that NetBox's own `migrate` filled. After a restore NetBox's `migrate` still runs: it
does nothing when the dump is complete and makes up for what is missing when it is not. Without a dump
the full migration runs once and its result is kept below `var/cache`.
"""

from __future__ import annotations

import json
import lzma
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from deploy.lab.interpreters import quiet, run_tool, write_marker
from deploy.lab.netbox.instance import DATABASE, Instance, pinned_version
from deploy.lab.netbox.postgres import PostgresServer
from libs.runtime.processes import StartError

MIGRATE_LIMIT_SECONDS = 1800.0  # A full migration takes 4 minutes on two idle cores.
SCRATCH_DATABASE = "netbox_dump"


@dataclass(frozen=True)
class Schema:
    """Fills the database of `instance` on `server`."""

    instance: Instance
    server: PostgresServer

    @property
    def marker(self) -> Path:
        """Says which version the database is at and for which secrets; it lies with the data and goes with it."""
        return self.server.home / "netbox-ready"

    def committed_dump(self) -> Path:
        return Path(__file__).with_name(f"netbox-{pinned_version()}.sql.xz")

    def cached_dump(self) -> Path:
        return self.instance.software / "cache" / f"netbox-{pinned_version()}.sql.xz"

    def is_ready(self) -> bool:
        """True when the database is at the pinned version and the kept token was made for it."""
        kept = self._kept()
        return kept == self._wanted() and self.instance.token_file.exists()

    def prepare(self, on_progress: Callable[[str], None] = quiet) -> None:
        """Restore or migrate as needed, and make the administrator and the API token. Raises StartError.

        A database that was once complete is only ever migrated forward; one without a marker is what a
        broken-off first start left and is made again.
        """
        if self.is_ready():
            return
        if self._kept() is None:
            self._restore(on_progress)
        on_progress("running NetBox's migrate and making its API token")
        self.instance.keep_token(self._migrate(self.instance.kept_secrets()["admin_password"]))
        write_marker(self.marker, json.dumps(self._wanted()))

    def _restore(self, on_progress: Callable[[str], None]) -> None:
        self.server.drop_database(DATABASE)
        self.server.create_database(DATABASE)
        for dump in (self.committed_dump(), self.cached_dump()):
            if dump.exists():
                on_progress(f"restoring NetBox's empty database from {dump.name}")
                self.server.execute_script(DATABASE, lzma.decompress(dump.read_bytes()))
                return
        on_progress("no dump for this NetBox version: migrating from nothing, which takes about 4 minutes")
        self._migrate("")
        self.write_dump(DATABASE, self.cached_dump())

    def make_dump(self, on_progress: Callable[[str], None] = quiet) -> Path:
        """Migrate a scratch database from nothing and write the committed dump from it. Returns its path."""
        self.server.drop_database(SCRATCH_DATABASE)
        self.server.create_database(SCRATCH_DATABASE)
        on_progress("migrating a scratch database from nothing, which takes about 4 minutes")
        configuration = self.instance.root / "conf" / "configuration.py"
        kept = configuration.read_text()
        try:
            configuration.write_text(kept + f"DATABASES['default']['NAME'] = {SCRATCH_DATABASE!r}\n")
            self._migrate("")
        finally:
            configuration.write_text(kept)
        dump = self.committed_dump()
        self.write_dump(SCRATCH_DATABASE, dump)
        self.server.drop_database(SCRATCH_DATABASE)
        return dump

    def write_dump(self, database: str, target: Path) -> None:
        """Dump `database` as compressed SQL without owners or rights into `target`, in one step."""
        argv = self.server.client("pg_dump", database, "--no-owner", "--no-privileges")
        sql = run_tool(argv, "pg_dump", env=self.server.client_env())
        target.parent.mkdir(parents=True, exist_ok=True)
        half = target.with_suffix(".half")
        half.write_bytes(lzma.compress(sql.encode(), preset=9 | lzma.PRESET_EXTREME))
        half.replace(target)

    def _migrate(self, admin_password: str) -> str:
        """Run NetBox's migrate; returns the new API token when a password is given, else the empty string."""
        script = Path(__file__).with_name("prepare_database.py")
        try:
            done = subprocess.run(
                [self.instance.venv / "bin" / "python", str(script)],
                input=f"{admin_password}\n",
                capture_output=True,
                text=True,
                env={**os.environ, **self.instance.env},
                timeout=MIGRATE_LIMIT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise StartError(f"NetBox's migrate did not end within {MIGRATE_LIMIT_SECONDS:.0f} s") from error
        if done.returncode != 0:
            raise StartError(f"NetBox's migrate failed:\n{done.stderr[-2000:]}")
        return done.stdout.strip().splitlines()[-1] if admin_password else ""

    def _kept(self) -> dict[str, str] | None:
        try:
            kept: dict[str, str] = json.loads(self.marker.read_text())
        except (OSError, ValueError):
            return None
        return kept

    def _wanted(self) -> dict[str, str]:
        pepper = self.instance.kept_secrets()["pepper"]
        return {"version": pinned_version(), "pepper_sha256": sha256(pepper.encode()).hexdigest()}

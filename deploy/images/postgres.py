"""PostgreSQL in a container: the embedded binaries, reachable from the container's networks by password only.

Initialises /state once, then becomes the server, so that the engine's signals reach it; its arguments are the
server's. The superuser's password is the one in /config/postgres.password, which only this part and the preparation
can read; without that file (tests) it is POSTGRES_PASSWORD.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from libs.runtime.embedded import EmbeddedPostgres, postgres_binary

STATE = Path("/state")
PASSWORD_FILE = Path("/config/postgres.password")
PORT = 5432
# No `trust` line: whoever reaches the port needs a password, this container's own processes included.
WHO_MAY_CONNECT = "host all all all scram-sha-256\n"


def main() -> None:
    """Never returns. Raises StartError when initdb fails."""
    server = EmbeddedPostgres(STATE, PORT)
    kept = STATE / "secrets" / f"{server.name}.password"
    kept.parent.mkdir(mode=0o700, exist_ok=True)
    kept.touch(mode=0o600)
    kept.write_text(password())
    server.initialise()
    (server.data / "pg_hba.conf").write_text(WHO_MAY_CONNECT)
    settings = {
        "listen_addresses": "*",
        "port": str(PORT),
        "unix_socket_directories": "",
        "max_connections": "200",
        "shared_buffers": "64MB",
        "max_wal_size": "1GB",
    }
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    binary = str(postgres_binary("postgres"))
    os.execv(binary, [binary, "-D", str(server.data), *options, *sys.argv[1:]])


def password() -> str:
    """The superuser's. Raises KeyError when nobody gave one: a server without a password must not start."""
    return PASSWORD_FILE.read_text().strip() if PASSWORD_FILE.exists() else os.environ["POSTGRES_PASSWORD"]


if __name__ == "__main__":
    main()

"""The development OIDC provider as a part of the local deployment.

Installs npm `oidc-provider` into the deployment's own folder, keeps its signing keys and client
secrets there (mode 600, made once, so that a restart keeps issued tokens valid), starts and ends it.
What is signed in, and how, is `server.mjs`; who exists is `accounts.json`.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from joserfc.jwk import RSAKey

from deploy.lab import node_toolchain
from deploy.lab.oidc import sign_in
from deploy.lab.oidc.accounts import ACCOUNTS
from libs.runtime.processes import Process, http_ready

SOURCE = Path(__file__).parent
SERVER_FILES = ("server.mjs", "accounts.json")
RSA_BITS = 2048  # The least that RFC 7518 §3.3 allows for RS256; a development key needs no more.
SECRET_BYTES = 32


def new_signing_key() -> dict[str, object]:
    """A private RSA key as a JWK, named by its thumbprint (RFC 7638)."""
    key = RSAKey.generate_key(RSA_BITS, parameters={"use": "sig", "alg": "RS256"}, auto_kid=True)
    return dict(key.as_dict(private=True))


def new_clients() -> dict[str, object]:
    """Fresh secrets of the service clients and of the provider's cookies."""
    service_clients = {
        account.service_client: {"account": account.subject, "secret": secrets.token_urlsafe(SECRET_BYTES)}
        for account in ACCOUNTS
    }
    return {"cookie_keys": [secrets.token_urlsafe(SECRET_BYTES)], "service_clients": service_clients}


def write_secret(path: Path, content: object) -> None:
    """Write JSON readable by the owner only, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(content, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


@dataclass(frozen=True)
class OidcLab:
    """The provider on 127.0.0.1:`port` with its state below `var`/lab/oidc.

    `software` is the `var` folder that its packages are installed below, when it is another one.
    """

    var: Path
    port: int
    software: Path | None = None

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def state(self) -> Path:
        """The folder of signing-keys.json and clients.json."""
        return self.var / "lab" / "oidc"

    @property
    def application(self) -> Path:
        return (self.software or self.var) / "lab" / "oidc-application"

    def install(self, on_progress: Callable[[str], None] = lambda _: None) -> None:
        """Install the provider's packages (40, 3 MB) and make keys and secrets.

        Harmless when done before. Raises StartError.
        """
        node_toolchain.npm_install(self.application, SOURCE, self.software or self.var, on_progress)
        self._prepare()

    def _prepare(self) -> None:
        for name in SERVER_FILES:
            shutil.copyfile(SOURCE / name, self.application / name)
        if not (self.state / "signing-keys.json").exists():
            write_secret(self.state / "signing-keys.json", {"keys": [new_signing_key()]})
        clients = self.state / "clients.json"
        known = json.loads(clients.read_text())["service_clients"] if clients.exists() else {}
        if {account.service_client for account in ACCOUNTS} - set(known):
            write_secret(clients, new_clients())

    def rotate_signing_key(self, *, keep_old: bool) -> None:
        """Put a new signing key first; the old ones stay published or are withdrawn. Takes effect at the next start."""
        path = self.state / "signing-keys.json"
        old = json.loads(path.read_text())["keys"] if keep_old else []
        write_secret(path, {"keys": [new_signing_key(), *old]})

    def processes(self) -> tuple[Process, ...]:
        """The provider's one process, for a supervisor."""

        def answers_as_us(status: int, body: bytes) -> bool:
            return status == 200 and json.loads(body).get("issuer") == self.issuer

        return (
            Process(
                name="oidc",
                argv=(str(node_toolchain.node_executable(self.software or self.var)), "server.mjs"),
                var=self.var,
                cwd=self.application,
                env={
                    "SLIPWAY_OIDC_PORT": str(self.port),
                    "SLIPWAY_OIDC_ISSUER": self.issuer,
                    "SLIPWAY_OIDC_STATE": str(self.state.resolve()),
                    "NODE_ENV": "production",
                },
                ports=(self.port,),
                ready=http_ready(f"{self.issuer}/.well-known/openid-configuration", answers_as_us),
            ),
        )

    def start(self) -> None:
        """Install what is missing, start and wait until it answers (about 0.5 s). Harmless when it runs."""
        self.install()
        for process in self.processes():
            process.start()

    def stop(self) -> None:
        """End the provider. Harmless when it does not run."""
        for process in self.processes():
            process.stop()

    def token(self, client_id: str, audience: str) -> str:
        """An access token of a service client, see `sign_in.token`."""
        return sign_in.token(client_id, audience, issuer=self.issuer, state=self.state)

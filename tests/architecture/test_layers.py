"""Who may import whom holds (pyproject.toml, [tool.importlinter]), and every rule is about modules that exist."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
_LINT = [sys.executable, "-c", "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"]


def _rules() -> dict[str, Any]:
    rules: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return rules


def _contracts() -> list[dict[str, Any]]:
    contracts: list[dict[str, Any]] = _rules()["contracts"]
    return contracts


def test_nobody_imports_what_they_may_not() -> None:
    done = subprocess.run(_LINT, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _named(contract: dict[str, Any]) -> Iterator[str]:
    yield from contract.get("modules", ())
    yield from contract.get("source_modules", ())
    yield from contract.get("forbidden_modules", ())
    yield from contract.get("containers", ())
    for line in contract.get("ignore_imports", ()):
        yield from (side.strip().removesuffix(".*") for side in line.split("->"))


@pytest.mark.parametrize("contract", _contracts(), ids=lambda contract: contract["id"])
def test_every_module_that_a_rule_names_exists(contract: dict[str, Any]) -> None:
    missing = [name for name in _named(contract) if importlib.util.find_spec(name) is None]
    assert missing == []


@pytest.mark.parametrize(
    "contract", [c for c in _contracts() if c["type"] == "layers"], ids=lambda contract: contract["id"]
)
def test_every_room_of_a_layer_exists_in_some_service(contract: dict[str, Any]) -> None:
    rooms = [room.strip(" ()") for layer in contract["layers"] for room in layer.split(":")]
    missing = [
        room
        for room in rooms
        if not any(importlib.util.find_spec(f"{container}.{room}") for container in contract["containers"])
    ]
    assert missing == []


def test_every_module_of_a_service_has_a_place_in_the_layers() -> None:
    placed: dict[str, set[str]] = {}
    for contract in _contracts():
        if contract["type"] == "layers":
            rooms = {room.strip(" ()") for layer in contract["layers"] for room in layer.split(":")}
            for container in contract["containers"]:
                placed[container] = rooms
    unplaced = [
        f"{container}.{name}"
        for container, rooms in placed.items()
        for name in _modules(container)
        if name not in rooms | _ANYWHERE
    ]
    assert unplaced == []


# Leaves: of their service they import its errors, evidence or routes at most; any room may use them.
_ANYWHERE = {"errors", "settings", "nvidia_smi", "ssh_config", "ssh_keys"}


def _modules(container: str) -> list[str]:
    folder = ROOT / container.replace(".", "/")
    files = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
    return sorted(files + [path.parent.name for path in folder.glob("*/__init__.py")])


def test_every_service_is_in_the_rule_that_keeps_services_apart() -> None:
    apart = next(contract for contract in _contracts() if contract["id"] == "services-apart")
    assert sorted(apart["modules"]) == sorted(f"services.{path.parent.name}" for path in ROOT.glob("services/*/app.py"))


def test_a_broken_rule_is_noticed(tmp_path: Path) -> None:
    config = tmp_path / "rules.toml"
    config.write_text(
        '[tool.importlinter]\nroot_packages = ["services", "libs"]\n'
        '[[tool.importlinter.contracts]]\nname = "impossible"\ntype = "forbidden"\n'
        'source_modules = ["services.audit"]\nforbidden_modules = ["libs.contracts"]\n'
    )
    code = f"import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports({str(config)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "impossible BROKEN" in done.stdout

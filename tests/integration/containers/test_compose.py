"""docker-compose.yml: what it may say, always; and that it comes up and works, where an engine is and one asks for it.

The second part takes minutes and an image that was built before (docs/guides/containers.md), so it runs only with
SLIPWAY_COMPOSE_TEST=1 and an engine that answers.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic_settings import BaseSettings

from deploy.local.layout import SERVICES
from libs.testing.containers import engine_answers
from services.audit.settings import Settings as AuditSettings
from services.cost.settings import Settings as CostSettings
from services.gateway.settings import Settings as GatewaySettings
from services.identity.settings import Settings as IdentitySettings
from services.inventory.settings import InventorySettings
from services.satellite.settings import SatelliteSettings

SETTINGS: Mapping[str, type[BaseSettings]] = {
    "identity": IdentitySettings,
    "inventory": InventorySettings,
    "audit": AuditSettings,
    "cost": CostSettings,
    "gateway": GatewaySettings,
    "satellite": SatelliteSettings,
}
PORTS = {"SLIPWAY_TENANT_PORT": "28080", "SLIPWAY_OPERATOR_PORT": "28081", "SLIPWAY_OIDC_PORT": "28082"}
UP_LIMIT_SECONDS = 600
RESTART_LIMIT_SECONDS = 60


@pytest.fixture(scope="module")
def compose(repository: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((repository / "docker-compose.yml").read_text())
    return loaded


def long_running(compose: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in compose["services"].items() if part["restart"] != "no"}


def test_every_service_of_the_hub_is_a_container(compose: dict[str, Any]) -> None:
    for service in (*SERVICES, "gateway", "satellite"):
        assert compose["services"][service]["command"] == f"python -m services.{service}.app"


def test_every_long_running_part_has_a_health_check_of_its_own(compose: dict[str, Any]) -> None:
    parts = long_running(compose)
    assert set(SERVICES) < set(parts)
    for name, part in parts.items():
        check = part["healthcheck"]
        assert check.get("test") and not check.get("disable"), name


def test_services_are_asked_for_readiness_not_for_life(compose: dict[str, Any]) -> None:
    for service in (*SERVICES, "gateway", "satellite"):
        part = compose["services"][service]
        assert part["healthcheck"]["test"][-1] == "/readyz", service
        assert part["healthcheck"]["test"][-2] == part["environment"]["SLIPWAY_METRICS_PORT"], service


def test_ports_are_published_on_loopback_only_and_by_the_doors_only(compose: dict[str, Any]) -> None:
    published = {name: part["ports"] for name, part in compose["services"].items() if part.get("ports")}
    assert set(published) == {"doors"}
    assert all(str(port).startswith("127.0.0.1:") for port in published["doors"])
    assert not [name for name, part in compose["services"].items() if part.get("network_mode") == "host"]


def test_every_variable_is_one_that_its_process_reads(compose: dict[str, Any], repository: Path) -> None:
    provider = set(re.findall(r"SLIPWAY_\w+", (repository / "deploy/lab/oidc/server.mjs").read_text()))
    client = set(re.findall(r"SLIPWAY_\w+", (repository / "libs/sdk/slipway/config.py").read_text()))
    init = set(re.findall(r"SLIPWAY_\w+", (repository / "deploy/images/layout.py").read_text()))
    known = {"sign-in": provider, "cli": client, "init": init, "prepare-site": _variables(SatelliteSettings)}
    for name, part in compose["services"].items():
        given = {variable for variable in part.get("environment", {}) if variable.startswith("SLIPWAY_")}
        settings = SETTINGS.get(name, CostSettings)  # The others have what every service has.
        assert given <= known.get(name, _variables(settings)), name


def _variables(settings: type[BaseSettings]) -> set[str]:
    return {f"SLIPWAY_{name.upper()}" for name in settings.model_fields}


def test_no_secret_stands_in_the_file(compose: dict[str, Any]) -> None:
    for name, part in compose["services"].items():
        for variable in part.get("environment", {}):
            assert not re.search("PASSWORD|SECRET|TOKEN|DATABASE_URL", variable), (name, variable)


def test_every_part_sees_its_own_configuration_only(compose: dict[str, Any]) -> None:
    for name, part in compose["services"].items():
        sources = {volume.split(":")[0] for volume in part.get("volumes", ())}
        if name == "init":
            configured = {other for other, part in long_running(compose).items() if part.get("volumes")}
            assert {f"{other}-config" for other in configured} < sources
        elif name == "prepare-hub":
            assert sources == {"own"}
        else:
            owner = "satellite" if name == "prepare-site" else name
            assert sources <= {f"{owner}-config", f"{owner}-state"}, name


def test_every_part_runs_without_rights_on_a_file_system_that_it_cannot_change(compose: dict[str, Any]) -> None:
    for name, part in compose["services"].items():
        assert part["cap_drop"] == ["ALL"] and part["read_only"] is True, name
        assert "no-new-privileges:true" in part["security_opt"], name
        assert "user" not in part and "privileged" not in part, name


def test_the_image_runs_as_an_unprivileged_user(repository: Path) -> None:
    stages = (repository / "deploy/images/Dockerfile").read_text().split("\nFROM ")
    assert re.findall(r"^USER (\S+)", stages[-1], re.MULTILINE) == ["slipway"]


def test_the_satellite_reaches_its_leaf_and_nothing_of_the_hub(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert services["satellite"]["networks"] == ["site"] and compose["networks"]["site"]["internal"] is True
    shared = {name for name, part in services.items() if "site" in part.get("networks", ())}
    assert shared == {"satellite", "leaf-nats", "prepare-site"}


# -- with an engine --------------------------------------------------------------------------------


def run(repository: Path, *arguments: str) -> str:
    """`docker compose …` under a project of the test's own; returns what it said, fails with it when it fails."""
    command = ["docker", "compose", "--project-name", "slipway-test", *arguments]
    done = subprocess.run(
        command,
        cwd=repository,
        env={**os.environ, **PORTS},
        capture_output=True,
        text=True,
        timeout=UP_LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def crash(repository: Path, part: str) -> None:
    """kill -9 a part's process from inside, as a crash would end it, and wait until the engine has it ready again."""
    # [.] keeps the pattern from finding the shell that it stands in.
    kill = (
        f"for p in /proc/[0-9]*; do grep -qa 'services[.]{part}[.]app' $p/cmdline && kill -9 ${{p#/proc/}}; done; true"
    )
    run(repository, "exec", "-T", part, "sh", "-c", kill)
    container = run(repository, "ps", "-q", part).strip()
    deadline = time.monotonic() + RESTART_LIMIT_SECONDS
    inspect = ["docker", "inspect", "--format", "{{.RestartCount}}", container]
    while subprocess.run(inspect, capture_output=True, text=True, check=True).stdout.strip() == "0":
        assert time.monotonic() < deadline, f"{part} was not started again"
        time.sleep(0.2)
    run(repository, "up", "--wait", "--no-build", "--no-recreate")


@pytest.fixture
def deployment(repository: Path) -> Iterator[Path]:
    """The deployment, up; gone afterwards with its volumes."""
    if os.environ.get("SLIPWAY_COMPOSE_TEST") != "1":
        pytest.skip("SLIPWAY_COMPOSE_TEST=1 brings the containers up")
    if not engine_answers():
        pytest.skip("no Docker engine answers")
    try:
        run(repository, "up", "--wait", "--no-build")
        yield repository
    finally:
        run(repository, "down", "--volumes", "--timeout", "5")


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_deployment_comes_up_outlives_a_crash_and_keeps_a_cluster_over_a_restart(
    deployment: Path,
) -> None:
    told = run(deployment, "run", "--rm", "-T", "cli", "sh", "deploy/images/tour.sh")
    assert "enrol machines SUCCEEDED" in told and "create cluster SUCCEEDED" in told
    crash(deployment, "gateway")
    assert "fra1-r1-gpu-01" in run(deployment, "run", "--rm", "-T", "cli", "slipway", "machines", "list")
    run(deployment, "down", "--timeout", "5")
    run(deployment, "up", "--wait", "--no-build")
    kept = run(
        deployment, "run", "--rm", "-T", "cli", *["slipway", "--context", "alice", "clusters", "show", "tour", "--json"]
    )
    assert '"READY"' in kept

"""Every route has an owner that answers it, and no filter is offered that its owner would silently ignore."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from libs.runtime.pages import Listing
from services.gateway.filters import ListQuery, PageQuery, Query
from services.gateway.routes import ROUTES, Owner, Route

SERVICES = ("inventory", "reservation", "provisioning", "validation", "cost", "identity", "audit", "subscription")
SHELL_READS = {
    "get_operation",
    "projections",
    "dead_letters",
    "dead_letter",
    "restore",
    "rebuild_progress",
    "replays",
    "replay",
}
SHELL_WRITES = {
    *("cancel_operation", "resume_operation", "rebuild_projection", "accept_restore"),
    *("redrive", "drop_dead_letter", "redrive_many", "start_replay", "cancel_replay"),
}
FIXED = [route for route in ROUTES if route.owner not in tuple(Owner) and not route.streams]
# Lists whose owner builds the listing for each request.
BUILT = {"list_deliveries", "list_usage", "list_events", "list_nodes", "list_sources", "list_stuck"}
# What an owner handles itself, beside its listing.
HANDLED = {"from", "to", "open", "q", *PageQuery.model_fields, *ListQuery.model_fields}


def service(name: str) -> Any:
    return importlib.import_module(f"services.{name}.app").service


@pytest.mark.parametrize("route", FIXED, ids=lambda route: f"{route.method} {route.path}")
def test_the_owner_of_a_route_answers_it(route: Route) -> None:
    owner = service(route.owner)
    assert route.call in (owner.calls if route.writes else owner.queries)


def test_what_the_shell_of_every_service_answers_is_asked_of_it() -> None:
    routes = [route for route in ROUTES if route.owner in tuple(Owner)]
    assert {route.call for route in routes if route.writes} == SHELL_WRITES
    assert {route.call for route in routes if not route.writes} == SHELL_READS


def listings(name: str) -> dict[str, Listing]:
    """The listings of the modules in which the service's queries are."""
    modules = {query.__module__ for query in service(name).queries.values()}
    found = [vars(importlib.import_module(module)) for module in modules if module.startswith(f"services.{name}.")]
    return {key.lower(): value for module in found for key, value in module.items() if isinstance(value, Listing)}


@pytest.mark.parametrize(
    "route",
    [r for r in FIXED if r.call.startswith("list_") and r.query is not Query and r.call not in BUILT],
    ids=lambda route: route.call,
)
def test_every_filter_of_a_list_is_one_of_its_owners(route: Route) -> None:
    listing = listings(route.owner).get(route.call.removeprefix("list_"))
    assert listing is not None
    offered = {field.alias or name for name, field in route.query.model_fields.items()} - HANDLED
    assert offered <= {*listing.filters, *listing.conditions}

"""The OpenAPI documents are a function of the route table, and the checked-in ones are up to date."""

from __future__ import annotations

import json

import pytest

from services.gateway.openapi import FOLDER, document
from services.gateway.routes import ROUTES, Door


@pytest.mark.parametrize("door", list(Door))
def test_the_checked_in_document_is_what_the_routes_say_today(door: Door) -> None:
    checked_in = (FOLDER / f"{door}.json").read_text(encoding="utf-8")
    assert checked_in == document(door), "run: python -m services.gateway.openapi"


@pytest.mark.parametrize("door", list(Door))
def test_every_reference_in_a_document_leads_somewhere(door: Door) -> None:
    text = document(door)
    schemas = json.loads(text)["components"]["schemas"]
    referred = {line.split('"')[3] for line in text.splitlines() if '"$ref"' in line}
    assert referred
    assert referred <= {f"#/components/schemas/{name}" for name in schemas}


def test_no_route_is_declared_twice_and_no_name_is_used_twice_at_a_door() -> None:
    for door in Door:
        rows = [route for route in ROUTES if door in route.doors]
        assert len({(route.method, route.path) for route in rows}) == len(rows)
        assert len({route.call for route in rows}) == len(rows)

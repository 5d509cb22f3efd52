"""Write both doors' OpenAPI documents into schemas/api/: `python -m services.gateway.openapi [folder]`.

Made from the route table alone, without bus or identity provider, and deterministic: the check that
the files are up to date is a diff.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from services.gateway.doors import make_app
from services.gateway.routes import Door, Route
from services.gateway.settings import AUDIENCES

FOLDER = Path(__file__).parents[2] / "schemas" / "api"


async def _never_served(route: Route, request: Request) -> Response:
    raise AssertionError(f"{route.path} is only described here, not served: {request.url}")


def document(door: Door) -> str:
    """The door's OpenAPI 3.1 document as JSON text."""
    app = make_app(door, AUDIENCES[door], _never_served)
    return json.dumps(app.openapi(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write(folder: Path) -> list[Path]:
    """Write `tenant.json` and `operator.json`; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for door in Door:
        path = folder / f"{door}.json"
        path.write_text(document(door), encoding="utf-8")
        paths.append(path)
    return paths


if __name__ == "__main__":
    for written in write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER):
        print(written)

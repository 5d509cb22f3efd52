"""`slipway profiles | images | templates | sites | racks`: what there is to choose from, and where."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from slipway.cli.output import Column, ago, console, plain_table, print_facts, print_json
from slipway.cli.session import DEFAULT_LIMIT, AskedDoor, Json, Limit, group, run, show_list, show_one, usage_error
from slipway.models import Document, Image, Profile, Rack, Site, Template

profiles = group("profiles", "Kinds of machine that can be asked for.")
images = group("images", "Golden images that nodes boot.")
templates = group("templates", "Stacks: the recipes that turn nodes into a cluster.")
sites = group("sites", "Locations, each with its satellite. (operators)")
racks = group("racks", "Racks. (operators)")
GROUPS = (profiles, images, templates, sites, racks)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name.")]
File = Annotated[Path, typer.Option("--file", "-f", help="JSON file with the fields; see the OpenAPI document.")]


def _gpus(profile: Profile) -> str:
    return f"{profile.gpu_count} × {profile.gpu_model}" if profile.gpu_count else "none"


PROFILE_COLUMNS = (
    Column[Profile]("NAME", lambda p: p.name),
    Column[Profile]("GPUS", _gpus),
    Column[Profile]("MEMORY", lambda p: f"{p.memory_gib} GiB" if p.memory_gib else "", right=True),
    Column[Profile]("DESCRIPTION", lambda p: p.description, grows=True),
)
IMAGE_COLUMNS = (
    Column[Image]("NAME", lambda i: i.name),
    Column[Image]("VERSION", lambda i: i.version_label),
    Column[Image]("DESCRIPTION", lambda i: i.description, grows=True),
)
TEMPLATE_COLUMNS = (
    Column[Template]("NAME", lambda t: t.name),
    Column[Template]("IMAGE", lambda t: t.default_image),
    Column[Template]("MAX NODES", lambda t: t.max_nodes, right=True),
    Column[Template]("MAX SWAPS", lambda t: t.max_swaps, right=True),
    Column[Template]("DESCRIPTION", lambda t: t.description, grows=True),
)
SITE_COLUMNS = (
    Column[Site]("SITE", lambda s: s.slug),
    Column[Site]("NAME", lambda s: s.name),
    Column[Site]("SATELLITE SEEN", lambda s: f"{ago(s.satellite_seen_at)} ago" if s.satellite_seen_at else "never"),
)
RACK_COLUMNS = (
    Column[Rack]("RACK", lambda r: r.name),
    Column[Rack]("SITE", lambda r: r.site),
    Column[Rack]("ID", lambda r: r.id),
)


@profiles.command("list")
def list_profiles(limit: Limit = DEFAULT_LIMIT, door: AskedDoor = None, as_json: Json = False) -> None:
    """List the kinds of machine that can be asked for.

    \b
      slipway profiles list
    """
    show_list(lambda client: client.profiles.pages(door=door), PROFILE_COLUMNS, as_json=as_json, limit=limit)


@profiles.command("show")
def show_profile(name: Name, door: AskedDoor = None, as_json: Json = False) -> None:
    """Show one profile and how many machines of it could be had now."""
    if as_json:
        print_json(run(lambda client: client.profiles.get(name, door=door)).raw)
        return
    _facts(run(lambda client: client.profiles.get(name, door=door)))
    availability(name, None, door, as_json=False)


@profiles.command("availability")
def availability(
    name: Name,
    site: Annotated[str | None, typer.Option("--site", help="Only at this site.")] = None,
    door: AskedDoor = None,
    as_json: Json = False,
) -> None:
    """Say how many machines could be had now, and why the others could not.

    \b
      slipway profiles availability h100-sxm-8
    """
    document = run(lambda client: client.profiles.availability(name, site=site, door=door)).raw
    if as_json:
        print_json(document)
        return
    console().print(f"{document.get('free')} of {document.get('total')} machines are free.")
    reasons = document.get("by_reason") or {}
    for reason, count in sorted(reasons.items(), key=lambda entry: -entry[1]):
        console().print(f"  {count:>5} {reason}")


@profiles.command("put")
def put_profile(name: Name, file: File, as_json: Json = False) -> None:
    """Add or replace a profile. (operators)

    \b
      echo '{"description": "8 x H100", "device_types": ["dgx-h100"], "gpu_model": "H100", "gpu_count": 8}' > p.json
      slipway profiles put h100-sxm-8 --file p.json
    """
    body = read_body(file)
    _put(run(lambda client: client.profiles.put(name, body)), f"Profile {name} is set.", as_json)


@images.command("list")
def list_images(limit: Limit = DEFAULT_LIMIT, door: AskedDoor = None, as_json: Json = False) -> None:
    """List golden images."""
    show_list(lambda client: client.images.pages(door=door), IMAGE_COLUMNS, as_json=as_json, limit=limit)


@images.command("show")
def show_image(name: Name, door: AskedDoor = None, as_json: Json = False) -> None:
    """Show one image: where its bytes are and what they must be."""
    show_one(lambda client: client.images.get(name, door=door), _facts, as_json=as_json)


@images.command("put")
def put_image(name: Name, file: File, as_json: Json = False) -> None:
    """Add or replace an image. (operators)

    \b
      slipway images put ubuntu-24.04 --file image.json
    """
    body = read_body(file)
    _put(run(lambda client: client.images.put(name, body)), f"Image {name} is set.", as_json)


@templates.command("list")
def list_templates(limit: Limit = DEFAULT_LIMIT, door: AskedDoor = None, as_json: Json = False) -> None:
    """List templates (stacks)."""
    show_list(lambda client: client.templates.pages(door=door), TEMPLATE_COLUMNS, as_json=as_json, limit=limit)


@templates.command("show")
def show_template(name: Name, door: AskedDoor = None, as_json: Json = False) -> None:
    """Show one template."""
    show_one(lambda client: client.templates.get(name, door=door), _facts, as_json=as_json)


@templates.command("put")
def put_template(name: Name, file: File, as_json: Json = False) -> None:
    """Add or replace a template. (operators)

    \b
      slipway templates put plain --file template.json
    """
    body = read_body(file)
    _put(run(lambda client: client.templates.put(name, body)), f"Template {name} is set.", as_json)


@sites.command("list")
def list_sites(limit: Limit = DEFAULT_LIMIT, as_json: Json = False) -> None:
    """List sites and when each one's satellite was last seen."""
    show_list(lambda client: client.sites.pages(), SITE_COLUMNS, as_json=as_json, limit=limit)


@racks.command("list")
def list_racks(
    site: Annotated[list[str] | None, typer.Option("--site", help="At this site; may be repeated.")] = None,
    limit: Limit = DEFAULT_LIMIT,
    as_json: Json = False,
) -> None:
    """List racks."""
    show_list(lambda client: client.racks.pages(site=site), RACK_COLUMNS, as_json=as_json, limit=limit)


@racks.command("show")
def show_rack(
    rack: Annotated[str, typer.Argument(metavar="RACK-ID", help="Id of the rack, see 'racks list'.")],
    as_json: Json = False,
) -> None:
    """Show a rack and its machines."""
    document = run(lambda client: client.racks.get(rack)).raw
    if as_json:
        print_json(document)
        return
    machines: Sequence[Any] = document.get("machines") or ()
    print_facts([("Rack", document.get("name")), ("Site", document.get("site"))])
    plain_table([{name: machine.get(name) for name in ("position", "name", "state")} for machine in machines])


def read_body(file: Path) -> dict[str, Any]:
    """The JSON object in `file`."""
    try:
        body = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        usage_error(f"{file} cannot be read as JSON: {error}.", "Give a file with one JSON object.")
    if not isinstance(body, dict):
        usage_error(f"{file} does not hold a JSON object.", 'Give a file like {"description": "…", …}.')
    return body


def _facts(document: Document) -> None:
    known = {name: value for name, value in document.raw.items() if value not in (None, "", [])}
    print_facts(
        (name.replace("_", " ").capitalize(), ", ".join(value) if isinstance(value, list) else str(value))
        for name, value in known.items()
    )


def _put(document: Document, done: str, as_json: bool) -> None:
    if as_json:
        print_json(document.raw)
    else:
        console().print(done)

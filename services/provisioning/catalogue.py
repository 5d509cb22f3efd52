"""Golden images and templates: seeded at the first start, changed by operators with If-Match."""

from __future__ import annotations

import hashlib

from sqlalchemy import Table

from libs.bus.context import Context
from libs.contracts.calls import Answer, Call, problem
from libs.contracts.message import Message
from libs.contracts.provisioning import ImageFacts, ImageUpdated, TemplateFacts, TemplateUpdated
from libs.runtime.params import invalid, parse
from services.provisioning import errors, store
from services.provisioning.requests import PutImage, PutTemplate

SEEDED_MAX_NODES = 64
SEEDED_MAX_SWAPS = 2


def seeded_images(base_url: str) -> tuple[ImageFacts, ...]:
    """The images a new installation starts with.

    Their checksum is of their name: it fits no real bytes, so that an image nobody has provided is never deployed by a
    driver that checks it. An operator sets address and checksum with PUT /images/{name}.
    """
    images = (
        ("ubuntu-22.04-gpu", "Ubuntu 22.04 with the NVIDIA driver and container toolkit"),
        ("ubuntu-22.04-cpu", "Ubuntu 22.04"),
    )
    return tuple(
        ImageFacts(
            name=name,
            version_label="22.04",
            url=f"{base_url.rstrip('/')}/{name}.qcow2",
            checksum=hashlib.sha256(name.encode()).hexdigest(),
            description=description,
        )
        for name, description in images
    )


SEEDED_TEMPLATES = (
    TemplateFacts(
        name="plain",
        description="Nodes with your SSH keys and names for each other; nothing else is installed",
        playbook="plain",
        default_image="ubuntu-22.04-gpu",
        max_nodes=SEEDED_MAX_NODES,
        max_swaps=SEEDED_MAX_SWAPS,
    ),
)


async def seed(ctx: Context, image_base_url: str) -> None:
    """Add what is missing; nothing that exists is changed."""
    for image in seeded_images(image_base_url):
        await _put(ctx, store.image_table, image, ImageUpdated(image=image), expected_version=0)
    for template in SEEDED_TEMPLATES:
        await _put(ctx, store.template_table, template, TemplateUpdated(template=template), expected_version=0)


async def _put(
    ctx: Context, table: Table, facts: ImageFacts | TemplateFacts, event: Message, *, expected_version: int
) -> bool:
    if not await store.put(ctx.conn, table, facts.model_dump(), expected_version=expected_version):
        return False
    ctx.emit(event, entity_id=facts.name, entity_version=facts.version)
    return True


async def put_image(ctx: Context, call: Call) -> Answer:
    """PUT /images/{name}: 201 new, 200 changed; If-Match is needed for an existing one."""
    wanted = parse(PutImage, call.params)
    if isinstance(wanted, Answer):
        return wanted
    known = await _version(ctx, store.image_table, wanted.name, call)
    if isinstance(known, Answer):
        return known
    facts = ImageFacts(**wanted.model_dump(), version=known + 1)
    if not await _put(ctx, store.image_table, facts, ImageUpdated(image=facts), expected_version=known):
        return _changed("image", wanted.name)
    return _done("images", facts, new=known == 0)


async def put_template(ctx: Context, call: Call) -> Answer:
    """PUT /templates/{name}: 201 new, 200 changed; If-Match is needed for an existing one."""
    wanted = parse(PutTemplate, call.params)
    if isinstance(wanted, Answer):
        return wanted
    if await store.one(ctx.conn, store.image_table, wanted.default_image) is None:
        return invalid([{"field": "default_image", "message": f"there is no image {wanted.default_image!r}"}])
    known = await _version(ctx, store.template_table, wanted.name, call)
    if isinstance(known, Answer):
        return known
    facts = TemplateFacts(**wanted.model_dump(), version=known + 1)
    if not await _put(ctx, store.template_table, facts, TemplateUpdated(template=facts), expected_version=known):
        return _changed("template", wanted.name)
    return _done("templates", facts, new=known == 0)


async def _version(ctx: Context, table: Table, name: str, call: Call) -> int | Answer:
    """The version that is to be replaced, 0 for a new one; or why not."""
    if call.tenants is not None:
        return problem(
            403,
            errors.OPERATOR_ONLY,
            f"A {table.name} belongs to the whole installation; only operators change it.",
            "Ask an operator.",
        )
    row = await store.one(ctx.conn, table, name, lock=True)
    if row is None:
        return 0 if call.if_match is None else _changed(table.name, name)
    if call.if_match is None:
        return problem(
            428,
            errors.PRECONDITION_NEEDED,
            f"The {table.name} {name!r} exists already.",
            f'Read it (GET /{table.name}s/{name}) and send its ETag as If-Match: "{row.version}".',
        )
    return int(row.version) if call.if_match in ("*", str(row.version)) else _changed(table.name, name)


def _changed(kind: str, name: str) -> Answer:
    return problem(
        412,
        errors.PRECONDITION_FAILED,
        f"The {kind} {name!r} is not the one that you have seen.",
        f"Read it again (GET /{kind}s/{name}) and send its ETag.",
    )


def _done(path: str, facts: ImageFacts | TemplateFacts, *, new: bool) -> Answer:
    return Answer(
        status=201 if new else 200,
        body=facts.model_dump(mode="json"),
        etag=str(facts.version),
        location=f"/{path}/{facts.name}" if new else None,
    )

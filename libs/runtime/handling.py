"""What comes from the bus, handled: replies by the saga engine, commands and observations by the service's handlers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.context import Context
from libs.bus.errors import UnknownMessage
from libs.bus.inbox import Received
from libs.contracts.envelope import Envelope
from libs.contracts.message import Message
from libs.contracts.replies import REPLY_TYPE, refused
from libs.contracts.versions import NewerMessage, known_class, todays
from libs.runtime.declared import Service

if TYPE_CHECKING:
    from libs.runtime.service import App


async def handle_batch(app: App, conn: AsyncConnection, received: Sequence[Received]) -> None:
    """Replies together (one load and one save for all sagas), everything else one by one in order.

    All in one transaction; what the messages cause is written to the outbox in one statement at its end.
    """
    outgoing: list[dict[str, Any]] = []
    replies = [message for message in received if message.envelope.type == REPLY_TYPE]
    if replies and app.engine is not None:
        await app.engine.replies(conn, lambda conn, cause: app.context(conn, cause, outgoing), replies)
    for message in received:
        if message.envelope.type != REPLY_TYPE:
            await _handle_one(app.service, app.context(conn, message.envelope, outgoing), message.envelope)
    await app.context(conn, None, outgoing).flush()


async def _handle_one(service: Service, ctx: Context, envelope: Envelope) -> None:
    """One command or observation, as its newest version says it: parse, handle, answer."""
    try:
        read = todays(envelope)
    except NewerMessage as error:
        raise UnknownMessage(str(error)) from error
    if read is None:
        return  # Another version beside it says the same.
    cls: type[Message] | None = known_class(read)
    if cls is not None and cls in service.observations:
        await service.observations[cls](ctx, cls.model_validate(read.data))
    elif cls is not None and cls in service.commands:
        try:
            command = cls.model_validate(read.data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            ctx.answer(envelope, refused("command.invalid", f"{envelope.type}: {where}: {first['msg']}"))
        else:
            reply = await service.commands[cls](ctx, command)
            if reply is not None:
                ctx.answer(envelope, reply)
    else:
        raise UnknownMessage(f"{service.name} has no handler for {envelope.type} {envelope.dataschema}")

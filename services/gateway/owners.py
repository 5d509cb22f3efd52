"""Asking a thing's owner: one request over NATS, one answer. No retries, no second owner, no cache.

Whoever does not answer in time has decided nothing that we know of: that is 503, never an empty list.
"""

from __future__ import annotations

import nats.errors
from nats.aio.client import Client
from pydantic import ValidationError

from libs.contracts.calls import CALL_PREFIX, QUERY_PREFIX, Answer, Call
from services.gateway.problems import Refusal, unavailable

ANSWER_WITHIN_SECONDS = 10.0


def subject_of(service: str, name: str, *, writes: bool) -> str:
    """The request-reply subject, e.g. qry.inventory.list_machines."""
    return f"{CALL_PREFIX if writes else QUERY_PREFIX}.{service}.{name}"


class Owners:
    """The services behind the bus."""

    def __init__(self, bus: Client, answer_within_seconds: float = ANSWER_WITHIN_SECONDS) -> None:
        self._bus = bus
        self._answer_within_seconds = answer_within_seconds

    @property
    def reachable(self) -> bool:
        return self._bus.is_connected

    async def ask(self, subject: str, call: Call, patience_seconds: float | None = None) -> Answer:
        """The owner's answer, whatever its status. Raises Refusal 503 (none) or 502 (unreadable)."""
        service = subject.split(".")[1]
        within = patience_seconds or self._answer_within_seconds
        if not self._bus.is_connected:
            # The client would keep the request and send it when the bus is back, long after we said 503.
            raise unavailable("gateway.bus_unavailable", "The message bus cannot be reached just now.")
        try:
            reply = await self._bus.request(subject, call.model_dump_json().encode(), within)
        except nats.errors.NoRespondersError:
            raise _no_answer(service, "is not running") from None
        except (TimeoutError, nats.errors.TimeoutError):
            raise _no_answer(service, f"did not answer within {within:g} s") from None
        except nats.errors.Error as error:
            raise _no_answer(service, f"could not be asked ({type(error).__name__})") from None
        try:
            return Answer.model_validate_json(reply.data)
        except ValidationError:
            raise Refusal(
                502,
                "gateway.owner_unreadable",
                f"The service {service} gave an answer that cannot be read.",
                "Report this with the correlation id; whether it was done can be seen with a GET.",
            ) from None


def _no_answer(service: str, why: str) -> Refusal:
    return unavailable("gateway.owner_unavailable", f"The service {service} {why}; nothing is known of this request.")

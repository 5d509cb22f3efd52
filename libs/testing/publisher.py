"""Publishes events as the services' sequencers do: numbered, at the same sequences of `EVT_<service>`."""

from __future__ import annotations

from collections import Counter

import orjson
from nats.js import JetStreamContext

from libs.contracts.envelope import Envelope, sequence_text
from libs.contracts.message import Message
from libs.testing.kit import make_event


class Publisher:
    """The only publisher of every service, on one broker. Events are kept, so a lost stream can be filled again."""

    def __init__(self, js: JetStreamContext) -> None:
        self.js = js
        self.published: list[Envelope] = []
        self._numbers: Counter[str] = Counter()
        self._versions: Counter[str] = Counter()

    async def say(self, event: Message, entity_id: str, *, tenant: str = "-", site: str = "-") -> Envelope:
        """Publish one event of the entity's next version; returns it with its numbers."""
        service = event.message_type.group
        self._numbers[service] += 1
        self._numbers[f"{tenant}/{service}"] += 1
        self._versions[entity_id] += 1
        envelope = make_event(
            event, entity_id=entity_id, entity_version=self._versions[entity_id], tenant=tenant, site=site
        ).model_copy(
            update={
                "sequence": sequence_text(self._numbers[service]),
                "tenantsequence": sequence_text(self._numbers[f"{tenant}/{service}"]),
            }
        )
        subject = event.message_type.subject(site=site, tenant=tenant)
        headers = {
            "Nats-Msg-Id": envelope.id,
            "Nats-Expected-Last-Sequence": str(self._numbers[service] - 1),
        }
        await self.js.publish(subject, orjson.dumps(envelope.model_dump(exclude_none=True)), headers=headers)
        self.published.append(envelope)
        return envelope

    async def gathered(self) -> int:
        """How many events `EVT` holds."""
        state = (await self.js.stream_info("EVT")).state
        return int(state.messages)

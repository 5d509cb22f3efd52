"""What the satellite tells of the site's Placement: each provider on change, its end once, nothing of a bad look."""

from __future__ import annotations

from dataclasses import replace

from libs.contracts.message import Message
from libs.contracts.placement import ProviderGone, ProviderObserved
from services.satellite.adapters.placement_twin import PlacementTwin
from services.satellite.errors import Unanswered
from services.satellite.placement import Provider
from services.satellite.placement_watch import PlacementWatch

FREE = Provider("m-1", "gpu-1", 1, "CUSTOM_H100", 1, 0, ())


class Away(PlacementTwin):
    """A Placement that can be away."""

    away = False

    async def providers(self, ids: frozenset[str]) -> list[Provider]:
        if self.away:
            raise Unanswered("placement_unreachable", "Placement does not answer: refused")
        return await super().providers(ids)


async def test_news_are_told_once_and_a_bad_look_says_nothing_of_any_provider() -> None:
    twin, said = Away(), list[Message]()

    async def say(message: Message) -> None:
        said.append(message)

    watch = PlacementWatch(twin, lambda: frozenset({"m-1"}), say, poll_seconds=1, repeat_seconds=3600)
    twin.put(FREE)
    twin.put(replace(FREE, id="m-2"))  # No node of the site.
    for _ in range(2):
        await watch.look()
    twin.put(replace(FREE, consumers=("nova",)))
    await watch.look()
    assert [one.consumers for one in said if isinstance(one, ProviderObserved)] == [(), ("nova",)]
    assert watch.state == "ok"

    twin.away = True
    await watch.look()
    assert (len(said), "does not answer" in watch.state) == (2, True)
    twin.away = False
    twin.put(FREE)
    await twin.remove("m-1", "gpu-1")
    for _ in range(2):
        await watch.look()
    assert [type(one) for one in said[2:]] == [ProviderGone]

"""Which of two versions is read: the newer where it is known, else the older, never both, never neither."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from libs.contracts import message as messages
from libs.contracts import upcasters, versions
from libs.contracts.envelope import Envelope, now_utc
from libs.contracts.upcasters import Upcasters
from libs.contracts.versions import NewerMessage, parse_version, todays
from tests.unit.libs.contracts.test_upcasters import TYPE, LampV1, LampV2, one_to_two


@pytest.fixture(params=["old", "new"])
def release(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A release that knows version 1, and one that knows both."""
    known = {(TYPE, 1): LampV1} if request.param == "old" else {(TYPE, 1): LampV1, (TYPE, 2): LampV2}
    monkeypatch.setattr(messages, "_REGISTRY", {**messages._REGISTRY, **known})
    made = Upcasters()
    if request.param == "new":
        made.register(TYPE, 1)(one_to_two)
    monkeypatch.setattr(versions, "UPCASTERS", made)
    monkeypatch.setattr(upcasters, "UPCASTERS", made)
    versions._is_current.cache_clear()
    yield request.param
    versions._is_current.cache_clear()


def said(version: int, beside: int | None = None) -> Envelope:
    data = {"name": "l", "on": True} if version == 1 else {"name": "l", "state": "on"}
    return Envelope(
        id=f"{version}",
        source="/slipway/inventory",
        type=TYPE,
        time=now_utc(),
        subject="l",
        dataschema=f"/schemas/events/{TYPE}.v{version}.json",
        correlationid="c",
        besideversion=beside,
        data=data,
    )


def test_of_two_versions_beside_one_another_exactly_one_is_read(release: str) -> None:
    read = [each for each in (todays(said(2, beside=1)), todays(said(1, beside=2))) if each is not None]
    assert [parse_version(each) for each in read] == [1 if release == "old" else 2]


def test_an_older_one_alone_is_read_as_the_newest(release: str) -> None:
    read = todays(said(1))
    assert read is not None
    assert read.data == ({"name": "l", "on": True} if release == "old" else {"name": "l", "state": "on"})
    assert (read.id, parse_version(read)) == ("1", 1 if release == "old" else 2)


def test_a_newer_one_alone_is_never_passed_over(release: str) -> None:
    if release == "new":
        sent = said(2)
        assert todays(sent) is sent
        return
    with pytest.raises(NewerMessage, match="version 2 is not known here"):
        todays(said(2))


def test_a_type_that_nobody_declares_is_left_as_it_is(release: str) -> None:
    stranger = said(2).model_copy(update={"type": "com.example.thing"})
    assert todays(stranger) is stranger


@pytest.mark.parametrize(
    "schema", [None, "", "x", "/x.v.json", "/x.v99999999999999999999.json", "/x.v².json", "/x.v-1.json"]
)
def test_a_schema_name_without_a_version_means_the_first(schema: str | None) -> None:
    assert parse_version(said(1).model_copy(update={"dataschema": schema})) == 1

"""A renamed slug moves nothing: the same place by its number keeps the name that we use."""

from __future__ import annotations

from services.inventory.adapters.source import SiteRecord
from services.inventory.model.places import Names, settle

WHY = "satellites are named after it"


def site(slug: str, number: int | None) -> SiteRecord:
    return SiteRecord(slug, slug.upper(), number)


def test_what_is_called_as_before_is_no_news() -> None:
    assert settle("site", {"fra1": 1}, [site("fra1", 1), site("ams1", 2)], WHY) == Names()
    assert settle("site", {}, [site("fra1", 1)], WHY) == Names()
    assert settle("site", {"fra1": None}, [site("fra1", None)], WHY) == Names()


def test_a_renamed_slug_keeps_our_name_and_says_so() -> None:
    names = settle("site", {"fra1": 1}, [site("fra-one", 1)], WHY)
    assert names.ours == {"fra-one": "fra1"} and names.taken == frozenset()
    assert "called fra-one" in names.problems["site:1"] and WHY in names.problems["site:1"]


def test_a_slug_that_another_thing_took_over_is_not_read_as_the_old_one() -> None:
    names = settle("site", {"fra1": 1}, [site("fra1-old", 1), site("fra1", 9)], WHY)
    assert (
        names.ours == {"fra1-old": "fra1"} and names.taken == {"fra1"} and set(names.problems) == {"site:1", "site:9"}
    )


def test_two_that_swapped_their_slugs_keep_our_names() -> None:
    names = settle("site", {"a": 1, "b": 2}, [site("b", 1), site("a", 2)], WHY)
    assert names.ours == {"b": "a", "a": "b"} and names.taken == frozenset()


def test_one_that_was_deleted_and_made_again_is_the_same_to_us() -> None:
    assert settle("site", {"fra1": 1}, [site("fra1", 9)], WHY) == Names()

"""Discovery's processes: one scan of a site's BMC ranges."""

from __future__ import annotations

from datetime import timedelta

from libs.contracts.discovery import ScanBmcs
from libs.saga import Data, ToSite, saga, step, to_site

# 4,096 addresses at 100 a second and 5 s for the last, with room for a site that is busy.
SCAN_WITHIN = timedelta(minutes=5)


def ask_the_ranges(data: Data) -> ToSite:
    return to_site(data["site"], ScanBmcs(scan_id=data["scan_id"], networks=tuple(data["networks"])))


def _keep_counts(data: Data, reply: Data) -> Data:
    return {**data, **{name: reply.get(name) for name in ("addresses", "found", "seconds")}}


def _result(data: Data) -> Data:
    return {name: data.get(name) for name in ("site", "addresses", "found", "seconds")}


scan_bmcs = saga("scan_bmcs", step(ask_the_ranges, within=SCAN_WITHIN, retries=1, then=_keep_counts), result=_result)

SAGAS = (scan_bmcs,)

"""Settings of reservation: what every service has, and how often it looks after itself."""

from __future__ import annotations

from pydantic import Field

from libs.runtime.settings import ServiceSettings


class Settings(ServiceSettings):
    """`*_every_seconds`: how long a hold may be overdue, or a returned machine still claimed, before it is seen."""

    reservation_expire_every_seconds: float = Field(default=1.0, gt=0)
    reservation_end_every_seconds: float = Field(default=1.0, gt=0)

"""Settings of provisioning: what every service has, and where the seeded images are."""

from __future__ import annotations

from libs.runtime.settings import ServiceSettings


class Settings(ServiceSettings):
    """`image_base_url`: the seeded golden images' address is this and their name."""

    image_base_url: str = "http://127.0.0.1:8089/images"

"""What callers may ask for, parsed at the edge; every refusal names its field and the remedy."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from libs.contracts.ids import is_slug
from libs.contracts.text import display_name
from services.provisioning.model import MAX_NAME_LENGTH, MAX_NODES

MAX_SSH_KEYS = 64
MAX_SWAPS = 256


def _slug(text: str) -> str:
    if not is_slug(text):
        raise ValueError("must be 1 to 63 of a-z, 0-9 and inner dashes, e.g. train-1")
    return text


def _cluster_name(text: str) -> str:
    if len(text) > MAX_NAME_LENGTH:
        raise ValueError(f"has {len(text)} characters; at most {MAX_NAME_LENGTH}, because host names are made of it")
    return _slug(text)


def _checksum(text: str) -> str:
    return text.removeprefix("sha256:")


Slug = Annotated[str, AfterValidator(_slug)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=100), AfterValidator(display_name)]
Text = Annotated[str, StringConstraints(max_length=2000, strip_whitespace=True)]
Url = Annotated[str, StringConstraints(pattern=r"^(?:https?|file)://[^\s]{1,1000}$", max_length=1024)]
Checksum = Annotated[str, StringConstraints(pattern=r"^(?:sha256:)?[0-9a-f]{64}$"), AfterValidator(_checksum)]
# A POSIX portable user name; it goes into an SSH configuration.
LoginUser = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")]


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CreateCluster(_Request):
    """`image` None: the template's default. `site` None: any one site. `tenant` None: the caller's only one."""

    name: Annotated[str, AfterValidator(_cluster_name)]
    profile: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    node_count: int = Field(ge=1, le=MAX_NODES, strict=True)
    image: Name | None = None
    template: Name | None = None
    site: Slug | None = None
    ssh_authorized_keys: tuple[str, ...] = Field(min_length=1, max_length=MAX_SSH_KEYS)
    tenant: Slug | None = None


class ById(BaseModel):
    cluster_id: str = Field(min_length=1, max_length=200)


class ByName(BaseModel):
    name: str = Field(min_length=1, max_length=200)


class SshConfigOf(ById):
    """`known_hosts_file` is where the caller will keep the known_hosts lines."""

    known_hosts_file: str | None = Field(default=None, pattern=r'^[^"\x00-\x1f]{1,1000}$')


class PutImage(_Request):
    name: Name
    version_label: Name
    url: Url
    checksum: Checksum
    description: Text = ""
    login_user: LoginUser = "ubuntu"


class PutTemplate(_Request):
    name: Name
    description: Text
    playbook: Slug
    default_image: Name
    max_nodes: int = Field(ge=1, le=MAX_NODES, strict=True)
    max_swaps: int = Field(ge=0, le=MAX_SWAPS, strict=True)

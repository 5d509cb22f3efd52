"""`slipway clusters`: ask for machines, log in, give them back."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from slipway.cli import progress
from slipway.cli.instants import At
from slipway.cli.output import Column, ago, console, exact, print_facts, print_json, print_table, span, state
from slipway.cli.session import (
    DEFAULT_LIMIT,
    AskedDoor,
    Json,
    Limit,
    Sort,
    Wait,
    Yes,
    confirm,
    group,
    run,
    show_list,
    show_one,
    usage_error,
)
from slipway.client import Client
from slipway.doors import Door
from slipway.errors import ApiError
from slipway.models import Cluster, Node, Operation, Started

clusters = group("clusters", "Clusters: create, list, show, log in, delete.")
GROUPS = (clusters,)

CLUSTER_ID = re.compile(r"clu-[0-9a-f]{32}")
PUBLIC_KEYS = ("id_ed25519.pub", "id_ecdsa.pub", "id_rsa.pub")
Name = Annotated[str, typer.Argument(metavar="CLUSTER", help="Name or id of the cluster.")]

COLUMNS = (
    Column[Cluster]("NAME", lambda c: c.name),
    Column[Cluster]("TENANT", lambda c: c.tenant),
    Column[Cluster]("STATE", lambda c: state(c.state)),
    Column[Cluster]("NODES", lambda c: f"{len(c.nodes)}/{c.node_count}", right=True),
    Column[Cluster]("PROFILE", lambda c: c.profile),
    Column[Cluster]("SITE", lambda c: c.site, spare=True),
    Column[Cluster]("AGE", lambda c: ago(c.created_at), right=True, spare=True),
    Column[Cluster]("ID", lambda c: c.id, is_id=True, spare=True),
    Column[Cluster]("WHY", lambda c: c.problem.message if c.problem else "", grows=True),
)
NODE_COLUMNS = (
    Column[Node]("NODE", lambda n: n.name),
    Column[Node]("MACHINE", lambda n: n.machine_name),
    Column[Node]("ADDRESS", lambda n: f"{n.address}:{n.ssh_port}" if n.address else ""),
    Column[Node]("GPUS", lambda n: f"{n.gpu_count} × {n.gpu_model}" if n.gpu_count else "", grows=True),
)


@clusters.command("list")
def list_clusters(
    state_: Annotated[list[str] | None, typer.Option("--state", "-s", help="In this state; may be repeated.")] = None,
    profile: Annotated[list[str] | None, typer.Option("--profile", help="Of this profile; may be repeated.")] = None,
    search: Annotated[str | None, typer.Option("--search", "-q", help="Text in the name.")] = None,
    sort: Sort = None,
    limit: Limit = DEFAULT_LIMIT,
    door: AskedDoor = None,
    as_json: Json = False,
) -> None:
    """List the clusters you can see.

    \b
      slipway clusters list
      slipway clusters list --state READY --json | jq -r '.items[].name'
    """
    show_list(
        lambda client: client.clusters.pages(door=door, state=state_, profile=profile, q=search, sort=sort),
        COLUMNS,
        as_json=as_json,
        limit=limit,
        nothing="No clusters. Ask for one with: slipway clusters create",
    )


@clusters.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Name: a-z, 0-9 and dashes.")],
    profile: Annotated[str, typer.Option("--profile", help="Kind of machine, see 'profiles list'.")],
    nodes: Annotated[int, typer.Option("--nodes", "-n", min=1, help="How many machines, all or nothing.")],
    key: Annotated[
        list[Path] | None,
        typer.Option("--key", "-k", help="Public key file of who may log in; your own in ~/.ssh when left out."),
    ] = None,
    image: Annotated[str | None, typer.Option("--image", help="Golden image, see 'images list'.")] = None,
    template: Annotated[str | None, typer.Option("--template", help="Stack, see 'templates list'.")] = None,
    site: Annotated[str | None, typer.Option("--site", help="Only machines of this site.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Whose it is, when you have several.")] = None,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Ask for a cluster. The answer comes at once; --wait shows each step with its time until it is READY.

    \b
      slipway clusters create train-1 --profile h100-sxm-8 --nodes 4 --wait
      slipway clusters create train-1 --profile h100-sxm-8 -n 4 --key alice.pub --key bob.pub
    """
    keys = public_keys(key or default_keys())

    async def start(client: Client) -> tuple[Started, Operation | None]:
        started = await client.clusters.create(
            name=name,
            profile=profile,
            node_count=nodes,
            keys=keys,
            image=image,
            template=template,
            site=site,
            tenant=tenant,
        )
        if not wait:
            return started, None
        operation = await progress.watch(client, started.operation_id, door=Door.TENANT, quiet=as_json)
        if operation.status == "SUCCEEDED" and not as_json and started.cluster_id:
            print_table(NODE_COLUMNS, (await client.clusters.nodes(started.cluster_id, door=Door.TENANT)).items)
            console().print(f"Log in with: slipway clusters ssh {name}")
        return started, operation

    progress.end(*run(start), as_json=as_json)


def default_keys() -> list[Path]:
    """The person's own public key."""
    found = [path for name in PUBLIC_KEYS if (path := Path.home() / ".ssh" / name).is_file()]
    if not found:
        usage_error("You have no public key in ~/.ssh.", "Make one with ssh-keygen -t ed25519, or use --key.")
    return found[:1]


def public_keys(paths: list[Path]) -> list[str]:
    """The key lines of the files. A private key is refused before it leaves this machine."""
    keys: list[str] = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            usage_error(f"{path} cannot be read: {error}.", "Name a public key file, such as ~/.ssh/id_ed25519.pub.")
        if "PRIVATE KEY" in text:
            usage_error(f"{path} is a private key: it was not sent.", f"Name the public key file: {path}.pub")
        keys += [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return keys


@clusters.command("show")
def show(cluster: Name, at: At = None, door: AskedDoor = None, as_json: Json = False) -> None:
    """Show a cluster with its nodes; with --at as it was then.

    \b
      slipway clusters show train-1
      slipway clusters show train-1 --at 2026-11-30T10:00Z
    """

    async def fetch(client: Client) -> Cluster:
        # By what it was called then: it may be gone, and its name another's now.
        return await (client.clusters.get(cluster, door=door, at=at) if at else find(client, cluster, door))

    show_one(fetch, _render, as_json=as_json)


def _render(cluster: Cluster) -> None:
    ready = None
    if cluster.ready_at and cluster.created_at:
        ready = (
            f"{exact(cluster.ready_at)}, {span((cluster.ready_at - cluster.created_at).total_seconds())} after asking"
        )
    print_facts(
        [
            ("Cluster", Text(cluster.name, "bold")),
            ("Id", cluster.id),
            ("State", state(cluster.state)),
            ("Why", Text(cluster.problem.message, "red") if cluster.problem else None),
            ("Next", cluster.problem.next_step if cluster.problem else None),
            ("Tenant", cluster.tenant),
            ("Site", cluster.site),
            ("Profile", f"{cluster.node_count} × {cluster.profile}"),
            ("Image", cluster.image),
            ("Template", cluster.template),
            ("Asked for", exact(cluster.created_at)),
            ("Ready", ready),
            ("Swapped nodes", cluster.swapped or None),
            ("Operation", cluster.operation_id),
            ("As of", cluster.as_of_event.told() if cluster.as_of_event else None),
        ]
    )
    if cluster.nodes:
        console().print()
        print_table(NODE_COLUMNS, cluster.nodes)


@clusters.command("nodes")
def nodes(cluster: Name, door: AskedDoor = None, as_json: Json = False) -> None:
    """List a cluster's nodes with their addresses.

    \b
      slipway clusters nodes train-1
    """

    async def fetch(client: Client) -> tuple[object, list[Node]]:
        page = await client.clusters.nodes((await find(client, cluster, door)).id, door=door)
        return page.raw, page.items

    raw, items = run(fetch)
    if as_json:
        print_json(raw)
    else:
        print_table(NODE_COLUMNS, items, "The cluster has no nodes (yet).")


@clusters.command("ssh-config")
def ssh_config(
    cluster: Name,
    write: Annotated[Path | None, typer.Option("--write", help="Write 'config' and 'known_hosts' here.")] = None,
    as_json: Json = False,
) -> None:
    """Print an SSH configuration for the cluster's nodes, or write it with their host keys.

    \b
      slipway clusters ssh-config train-1 --write ~/.ssh/train-1
      ssh -F ~/.ssh/train-1/config train-1-0
    """
    hosts = str(write.expanduser().resolve() / "known_hosts") if write else None
    config, known_hosts = run(lambda client: _ssh_texts(client, cluster, hosts))
    if as_json:
        print_json({"ssh_config": config, "known_hosts": known_hosts})
    elif write is None:
        console().print(config, soft_wrap=True)
    else:
        folder = write_ssh_files(write.expanduser(), config, known_hosts)
        console().print(f"Log in with: ssh -F {folder / 'config'} NODE", soft_wrap=True)


async def _ssh_texts(client: Client, cluster: str, known_hosts_file: str | None) -> tuple[str, str]:
    found = await find(client, cluster, Door.TENANT)
    return await client.clusters.ssh_config(found.id, known_hosts_file=known_hosts_file)


def write_ssh_files(folder: Path, config: str, known_hosts: str) -> Path:
    """`config` and `known_hosts` in `folder`, for their owner only."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / "known_hosts").write_text(known_hosts, encoding="utf-8")
    (folder / "config").write_text(config, encoding="utf-8")
    return folder


@clusters.command("ssh", context_settings={"ignore_unknown_options": True})
def ssh(
    cluster: Name,
    node: Annotated[str | None, typer.Argument(help="Node name; the first one when left out.")] = None,
    command: Annotated[list[str] | None, typer.Argument(help="Command to run there.")] = None,
) -> None:
    """Log in to a node, with the host key that the deployment confirmed.

    \b
      slipway clusters ssh train-1
      slipway clusters ssh train-1 train-1-2 nvidia-smi -L
    """

    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "slipway" / "ssh" / cluster

    async def fetch(client: Client) -> tuple[str, tuple[str, str]]:
        found = await find(client, cluster, Door.TENANT)
        if not found.nodes:
            usage_error(f"{cluster} is {found.state} and has no nodes to log in to.", "Wait until it is READY.")
        hosts = str(cache.resolve() / "known_hosts")
        return node or found.nodes[0].name, await client.clusters.ssh_config(found.id, known_hosts_file=hosts)

    host, (config, known_hosts) = run(fetch)
    folder = write_ssh_files(cache, config, known_hosts)
    argv = ["ssh", "-F", str(folder / "config"), host, *(command or [])]
    try:
        os.execvp("ssh", argv)
    except FileNotFoundError:
        usage_error("There is no ssh on this machine.", "Install an OpenSSH client.")


@clusters.command("delete")
def delete(
    cluster: Name,
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would happen.")] = False,
    wait: Wait = False,
    door: AskedDoor = None,
    as_json: Json = False,
) -> None:
    """Give a cluster back: everything on its nodes is wiped. Asks first, unless --yes is given.

    \b
      slipway clusters delete train-1 --dry-run
      slipway clusters delete train-1 --wait
      slipway clusters delete train-1 --yes --json
    """
    found = run(lambda client: find(client, cluster, door))
    if dry_run:
        if as_json:
            print_json(found.raw)
        else:
            console().print(_consequences(found))
        return
    if not yes:
        console(stderr=True).print(_consequences(found))
    confirm(f"Delete {found.name}?", yes=yes)

    async def start(client: Client) -> tuple[Started, Operation | None]:
        started = await client.clusters.delete(found.id, door=door)
        if not wait:
            return started, None
        return started, await progress.watch(client, started.operation_id, door=door, quiet=as_json)

    progress.end(*run(start), as_json=as_json)


def _consequences(cluster: Cluster) -> Text:
    names = ", ".join(node.name for node in cluster.nodes) or "no nodes yet"
    text = Text.assemble(
        "Deleting ", (cluster.name, "bold"), f" ({cluster.id}) of {cluster.tenant}, ", state(cluster.state)
    )
    text.append(f"\n  powers off and wipes {len(cluster.nodes)} nodes: {names}")
    text.append("\n  ends the billing when the request is accepted")
    text.append("\n  cannot be undone")
    return text


async def find(client: Client, name_or_id: str, door: Door | None) -> Cluster:
    """The cluster with this id, or the only living one with this name. Raises ApiError 404."""
    if CLUSTER_ID.fullmatch(name_or_id):
        return await client.clusters.get(name_or_id, door=door)
    named = [cluster async for cluster in client.clusters.list(door=door, q=name_or_id) if cluster.name == name_or_id]
    living = [cluster for cluster in named if cluster.state != "DELETED"] or named[-1:]
    if not living:
        raise ApiError(
            404,
            {
                "detail": f"There is no cluster {name_or_id!r} that you can see.",
                "code": "cluster.not_found",
                "next_step": "List them: slipway clusters list",
            },
        )
    if len(living) > 1:
        choices = ", ".join(f"{cluster.id} of {cluster.tenant}" for cluster in living)
        usage_error(f"Several clusters are named {name_or_id!r}: {choices}.", "Use the id.")
    return living[0]

"""Which addresses a machine is to get by DHCP: its BMC's and its provisioning ports', from the source of record's IPAM.

Every port of a machine leads to the machine, whichever of them asks: a bond takes the MAC of any member. A port that
has no address of its own is known by the machine's name. Addresses that software makes up are nobody's.
"""

from __future__ import annotations

import hashlib
import json
from ipaddress import ip_address

from libs.contracts.dhcp import AddressReservation
from libs.contracts.hardware_ids import known_port, locally_administered
from libs.contracts.inventory import MachineState
from services.inventory.model.machine import Machine

BMC_SUFFIX = "-bmc"
# A DNS label's limit; what is longer is cut rather than refused by the server.
LONGEST_NAME = 63


def wanted_reservations(machine: Machine) -> tuple[AddressReservation, ...]:
    """All of them, in a fixed order; none for a machine that has left."""
    if machine.state is MachineState.RETIRED:
        return ()
    name = machine.name.lower()
    found = [_reservation(machine.bmc_mac, machine.bmc_address, name[: LONGEST_NAME - len(BMC_SUFFIX)] + BMC_SUFFIX)]
    ports = [port for mac in machine.nic_macs if (port := known_port(mac)) and not locally_administered(port)]
    own = {known_port(mac): address for mac, address in machine.nic_addresses.items()}
    # Without any address there is no subnet to put a name into.
    if any(own.get(port) for port in ports):
        found += [_reservation(port, own.get(port, ""), name[:LONGEST_NAME]) for port in sorted(set(ports))]
    return tuple(entry for entry in found if entry is not None)


def _reservation(mac: str, address: str, hostname: str) -> AddressReservation | None:
    port = known_port(mac)
    if not port or (hostname.endswith(BMC_SUFFIX) and not _is_ipv4(address)):
        return None
    return AddressReservation(hw_address=port, ip_address=address if _is_ipv4(address) else "", hostname=hostname)


def _is_ipv4(text: str) -> bool:
    try:
        return ip_address(text).version == 4
    except ValueError:
        return False


def digest(wanted: tuple[AddressReservation, ...]) -> str:
    """The same for the same reservations."""
    return hashlib.sha256(json.dumps([entry.model_dump() for entry in wanted]).encode()).hexdigest()[:32]

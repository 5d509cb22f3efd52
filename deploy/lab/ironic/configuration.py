"""Ironic's configuration file for the lab. Pure: settings in, text out."""

from __future__ import annotations

from pathlib import Path

# Ironic notices within this time that a machine's power differs from what it last saw.
SYNC_POWER_STATE_SECONDS = 10


def ironic_conf(folder: Path, port: int, database_url: str) -> str:
    """The whole `ironic.conf` for a state folder, an API port on loopback and a PostgreSQL database."""
    return f"""\
# Written by deploy/lab/ironic/configuration.py at every start; changes made here are lost.
[DEFAULT]
auth_strategy = http_basic
http_basic_auth_user_file = {folder}/htpasswd
# API and conductor are one process and need no message bus.
rpc_transport = none
# A fixed name: after a kill the conductor finds its own reservations and releases them.
host = lab-conductor
my_ip = 127.0.0.1
state_path = {folder}/state
tempdir = {folder}/state
grub_config_path = {folder}/state/grub.cfg
enabled_hardware_types = sim-redfish
enabled_bios_interfaces = sim-redfish,no-bios
enabled_boot_interfaces = fake
enabled_console_interfaces = no-console
enabled_deploy_interfaces = sim
enabled_firmware_interfaces = redfish,no-firmware
enabled_inspect_interfaces = redfish,no-inspect
enabled_management_interfaces = redfish
enabled_network_interfaces = noop
enabled_power_interfaces = redfish
enabled_raid_interfaces = no-raid
enabled_rescue_interfaces = no-rescue
enabled_storage_interfaces = noop
enabled_vendor_interfaces = no-vendor
default_network_interface = noop

[api]
host_ip = 127.0.0.1
port = {port}
api_workers = 1

[conductor]
# Slipway wipes by a manual clean whose steps it names, and counts only its own record of that clean. An
# automated clean on `provide` and on undeploy would wipe a second time and prove nothing more; and a machine
# that leaves `clean failed` by `manage` would look like one that was wiped.
automated_clean = False
workers_pool_size = 64
heartbeat_interval = 5
heartbeat_timeout = 30
sync_power_state_interval = {SYNC_POWER_STATE_SECONDS}
# A machine whose BMC did not answer is looked at again soon, not after the default five minutes.
power_failure_recovery_interval = 15
# Emulated power changes take a fifth of a second.
power_state_change_timeout = 30
bootloader =

[database]
connection = {database_url}

[dhcp]
dhcp_provider = none

[oslo_concurrency]
lock_path = {folder}/state

[deploy]
http_root = {folder}/state/http
http_url = http://127.0.0.1:{port}

[pxe]
tftp_root = {folder}/state/tftp
tftp_master_path = {folder}/state/tftp_master
images_path = {folder}/state/images
instance_master_path = {folder}/state/master_images

[oslo_policy]
enforce_scope = False
enforce_new_defaults = False
"""

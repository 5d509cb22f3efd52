"""Make NetBox as large as a fleet of thousands: `python fill.py COUNT`, run by NetBox's own interpreter.

Through the API NetBox makes 24 devices a second, so this writes in bulk below it: devices with a BMC, two ports, their
MACs and the BMC's address, in the first site, of the first device type, in racks of forty. Only adds what is missing.
"""

import sys

import django  # type: ignore[import-not-found]

PORTS = ("bmc", "eno1np0", "eno2np1")
NAME = "bulk-gpu-{:05}"
RACK_SIZE = 40
BATCH = 1000
# A port's own MAC and a device's own address, where there is one and none was chosen.
LINKS = (
    """
    UPDATE dcim_interface AS port SET primary_mac_address_id = mac.id FROM dcim_macaddress AS mac
    WHERE port.primary_mac_address_id IS NULL AND mac.assigned_object_id = port.id AND mac.assigned_object_type_id =
          (SELECT id FROM django_content_type WHERE app_label = 'dcim' AND model = 'interface')
    """,
    """
    UPDATE dcim_device AS device SET oob_ip_id = address.id FROM dcim_interface AS port, ipam_ipaddress AS address
    WHERE device.oob_ip_id IS NULL AND port.device_id = device.id AND port.name = 'bmc'
      AND address.assigned_object_id = port.id AND address.assigned_object_type_id =
          (SELECT id FROM django_content_type WHERE app_label = 'dcim' AND model = 'interface')
    """,
)


def main(count: int) -> None:
    django.setup()
    from dcim.models import Device, DeviceRole, DeviceType, Rack, Site  # type: ignore[import-not-found]

    site = Site.objects.order_by("id").first()
    kind = DeviceType.objects.order_by("id").first()
    role = DeviceRole.objects.get(slug="gpu-node")
    there = set(Device.objects.filter(name__startswith="bulk-gpu-").values_list("name", flat=True))
    numbers = [number for number in range(1, count + 1) if NAME.format(number) not in there]
    racks = {}
    for number in sorted({(number - 1) // RACK_SIZE for number in numbers}):
        racks[number], _ = Rack.objects.get_or_create(name=f"bulk-{number:03}", site=site)
    devices = [
        Device(
            name=NAME.format(number),
            site=site,
            rack=racks[(number - 1) // RACK_SIZE],
            device_type=kind,
            role=role,
            serial=f"BULK{number:06}",
            asset_tag=f"BULK-{number}",
            status="staged",
            # As the API would show them: each of our fields is there, and empty.
            custom_field_data=dict.fromkeys(
                ("slipway_machine_id", "slipway_state", "slipway_health", "slipway_validated_at")
            ),
        )
        for number in numbers
    ]
    devices = Device.objects.bulk_create(devices, batch_size=BATCH)
    _ports(devices, numbers)
    print(Device.objects.filter(name__startswith="bulk-gpu-").count())


def _ports(devices: list, numbers: list) -> None:  # type: ignore[type-arg]
    """A BMC port and two others for each device, their MACs, and the BMC's address as the device's own."""
    from dcim.models import Interface, MACAddress
    from django.db import connection  # type: ignore[import-not-found]
    from ipam.models import IPAddress  # type: ignore[import-not-found]

    ports = [
        Interface(
            device=device, name=name, type="1000base-t" if name == "bmc" else "25gbase-x-sfp28", mgmt_only=name == "bmc"
        )
        for device in devices
        for name in PORTS
    ]
    ports = Interface.objects.bulk_create(ports, batch_size=BATCH)
    MACAddress.objects.bulk_create(
        [
            MACAddress(mac_address=_mac(number, place), assigned_object=ports[index * len(PORTS) + place])
            for index, number in enumerate(numbers)
            for place in range(len(PORTS))
        ],
        batch_size=BATCH,
    )
    IPAddress.objects.bulk_create(
        [
            IPAddress(
                address=f"10.{64 + number // 65536}.{number // 256 % 256}.{number % 256}/10",
                assigned_object=ports[index * len(PORTS)],
            )
            for index, number in enumerate(numbers)
        ],
        batch_size=BATCH,
    )
    with connection.cursor() as cursor:
        for statement in LINKS:
            cursor.execute(statement)


def _mac(number: int, place: int) -> str:
    return "02:" + ":".join(f"{(number * 4 + place) >> shift & 255:02X}" for shift in (32, 24, 16, 8, 0))


if __name__ == "__main__":
    main(int(sys.argv[1]))

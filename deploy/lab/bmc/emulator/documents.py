"""Redfish documents of one system, from its facts and its injected faults. Pure: no I/O.

Shapes follow what NVIDIA's HGX firmware and Dell's iDRAC answer: GPUs are Processors of type GPU and PCIe
devices; an empty slot is a Processor whose Status.State is Absent, without a serial number, and no PCIe
device. Sources: DMTF DSP2046 (Processor 1.16, PCIeDevice 1.9, Drive 1.4).
"""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]
Facts = dict[str, Any]
Faults = dict[str, Any]

STORAGE_ID = "NVMe"
# PCI ids of an H100 SXM5 80GB (pci-ids.ucw.cz) and of a ConnectX-7.
_NVIDIA, _H100_SXM5, _MELLANOX, _CONNECTX7 = "0x10de", "0x2330", "0x15b3", "0x1021"
_VBIOS_VERSION = "96.00.89.00.01"
_OK: Document = {"State": "Enabled", "Health": "OK"}


def _path(facts: Facts, *rest: str) -> str:
    return "/".join(("/redfish/v1/Systems", facts["uuid"], *rest))


def _collection(kind: str, path: str, members: list[str]) -> Document:
    return {
        "@odata.type": f"#{kind}Collection.{kind}Collection",
        "@odata.id": path,
        "Name": f"{kind} Collection",
        "Members@odata.count": len(members),
        "Members": [{"@odata.id": f"{path}/{member}"} for member in members],
    }


def _gpu_present(gpu: Facts, faults: Faults) -> bool:
    return bool(gpu["installed"]) and gpu["slot"] not in faults.get("gpu", {}).get("missing", [])


def _cpus(facts: Facts) -> dict[str, Document]:
    sockets = facts["cpu_sockets"]
    return {
        f"CPU.Socket.{number + 1}": {
            "Name": f"CPU {number + 1}",
            "Socket": f"CPU {number + 1}",
            "ProcessorType": "CPU",
            "ProcessorArchitecture": "x86",
            "InstructionSet": "x86-64",
            "Manufacturer": "Intel",
            "Model": facts["cpu_model"],
            "TotalCores": facts["cpu_cores"] // sockets,
            "TotalThreads": facts["cpu_threads"] // sockets,
            "Status": _OK,
        }
        for number in range(sockets)
    }


def _gpu_processor(gpu: Facts, faults: Faults) -> Document:
    named = {
        "Name": gpu["redfish_id"],
        "ProcessorType": "GPU",
        "Location": {"PartLocation": {"ServiceLabel": f"GPU {gpu['slot'] + 1}"}},
    }
    if not _gpu_present(gpu, faults):
        return {**named, "Manufacturer": None, "Model": None, "SerialNumber": None, "Status": {"State": "Absent"}}
    health = faults.get("gpu", {}).get("health", {}).get(str(gpu["slot"]), "OK")
    return {
        **named,
        "Manufacturer": "NVIDIA",
        "Model": gpu["model"],
        "SerialNumber": gpu["serial"],
        "UUID": gpu["uuid"].removeprefix("GPU-"),
        "PartNumber": "2330-885-A1",
        "FirmwareVersion": _VBIOS_VERSION,
        "MemorySummary": {"TotalMemorySizeMiB": gpu["memory_mib"], "ECCModeEnabled": True},
        "Status": {"State": "Enabled", "Health": health},
    }


def processors(facts: Facts, faults: Faults) -> dict[str, Document]:
    """All processors by id, CPUs first (Ironic's inspection takes the first one's model)."""
    gpus = {gpu["redfish_id"]: _gpu_processor(gpu, faults) for gpu in facts["gpus"]}
    return {
        name: {
            "@odata.type": "#Processor.v1_16_0.Processor",
            "@odata.id": _path(facts, "Processors", name),
            "Id": name,
            **document,
        }
        for name, document in (_cpus(facts) | gpus).items()
    }


def processor_collection(facts: Facts, faults: Faults) -> Document:
    """The Processors collection."""
    return _collection("Processor", _path(facts, "Processors"), list(processors(facts, faults)))


def pcie_devices(facts: Facts, faults: Faults) -> dict[str, Document]:
    """GPUs that are present and the network adapter, by id."""
    gpus: dict[str, Document] = {
        gpu["redfish_id"]: {
            "Name": gpu["redfish_id"],
            "Manufacturer": "NVIDIA",
            "Model": gpu["model"],
            "SerialNumber": gpu["serial"],
            "FirmwareVersion": _VBIOS_VERSION,
            "PCIeInterface": {"PCIeType": "Gen5", "MaxPCIeType": "Gen5", "LanesInUse": 16, "MaxLanes": 16},
        }
        for gpu in facts["gpus"]
        if _gpu_present(gpu, faults)
    }
    adapter: dict[str, Document] = {
        "NIC.Slot.1": {"Name": "NIC.Slot.1", "Manufacturer": "Mellanox", "Model": "ConnectX-7"}
    }
    return {
        name: {
            "@odata.type": "#PCIeDevice.v1_9_0.PCIeDevice",
            "@odata.id": _path(facts, "PCIeDevices", name),
            "Id": name,
            **document,
            "DeviceType": "SingleFunction",
            "Status": _OK,
            "PCIeFunctions": {"@odata.id": _path(facts, "PCIeDevices", name, "PCIeFunctions")},
        }
        for name, document in (gpus | adapter).items()
    }


def pcie_collection(facts: Facts, faults: Faults) -> Document:
    """The PCIeDevices collection."""
    return _collection("PCIeDevice", _path(facts, "PCIeDevices"), list(pcie_devices(facts, faults)))


def pcie_function_collection(facts: Facts, device: str) -> Document:
    """The functions of one PCIe device: always one."""
    return _collection("PCIeFunction", _path(facts, "PCIeDevices", device, "PCIeFunctions"), ["0"])


def pcie_function(facts: Facts, device: str) -> Document:
    """The only function of a PCIe device."""
    is_gpu = not device.startswith("NIC")
    return {
        "@odata.type": "#PCIeFunction.v1_5_0.PCIeFunction",
        "@odata.id": _path(facts, "PCIeDevices", device, "PCIeFunctions", "0"),
        "Id": "0",
        "Name": f"{device} function 0",
        "FunctionId": 0,
        "FunctionType": "Physical",
        "DeviceClass": "DisplayController" if is_gpu else "NetworkController",
        "ClassCode": "0x030200" if is_gpu else "0x020000",
        "VendorId": _NVIDIA if is_gpu else _MELLANOX,
        "DeviceId": _H100_SXM5 if is_gpu else _CONNECTX7,
        "SubsystemVendorId": _NVIDIA if is_gpu else _MELLANOX,
        "SubsystemId": "0x16c1" if is_gpu else "0x0041",
        "RevisionId": "0xa1" if is_gpu else "0x00",
        "Status": _OK,
    }


def storage(facts: Facts) -> Document:
    """The one storage controller, with its drives and volumes."""
    path = _path(facts, "Storage", STORAGE_ID)
    return {
        "@odata.type": "#Storage.v1_15_0.Storage",
        "@odata.id": path,
        "Id": STORAGE_ID,
        "Name": "NVMe drives",
        "Status": _OK,
        "StorageControllers": [
            {
                "@odata.id": f"{path}#/StorageControllers/0",
                "MemberId": "0",
                "Name": "PCIe switch",
                "SupportedControllerProtocols": ["PCIe"],
                "SupportedDeviceProtocols": ["NVMe"],
                "Status": _OK,
            }
        ],
        "Drives": [{"@odata.id": f"{path}/Drives/{drive['id']}"} for drive in facts["drives"]],
        "Volumes": {"@odata.id": f"{path}/Volumes"},
    }


def drives(facts: Facts) -> dict[str, Document]:
    """The drives by id."""
    return {
        drive["id"]: {
            "@odata.type": "#Drive.v1_4_0.Drive",
            "@odata.id": _path(facts, "Storage", STORAGE_ID, "Drives", drive["id"]),
            "Id": drive["id"],
            "Name": f"{drive['id']}n1",
            "Manufacturer": "Samsung" if drive["model"].startswith(("MZ", "Dell")) else "KIOXIA",
            "Model": drive["model"],
            "SerialNumber": drive["serial"],
            "CapacityBytes": drive["capacity_bytes"],
            "MediaType": "SSD",
            "Protocol": "NVMe",
            "FailurePredicted": False,
            "Status": _OK,
        }
        for drive in facts["drives"]
    }


def enrich_system(document: Document, facts: Facts, faults: Faults) -> Document:
    """sushy-tools' system document with the vendor's facts put in."""
    gpus = [gpu for gpu in facts["gpus"] if _gpu_present(gpu, faults)]
    return {
        **document,
        "Manufacturer": facts["manufacturer"],
        "Model": facts["model"],
        "SerialNumber": facts["serial"],
        "SKU": facts["serial"],
        "AssetTag": facts["asset_tag"],
        "BiosVersion": facts["firmware"]["bios"],
        "ProcessorSummary": {
            **document.get("ProcessorSummary", {}),
            "Count": facts["cpu_sockets"],
            "CoreCount": facts["cpu_cores"],
            "LogicalProcessorCount": facts["cpu_threads"],
            "Model": facts["cpu_model"],
        },
        "GraphicalProcessorSummary": {"Count": len(gpus)} if facts["gpus"] else None,
        "PCIeDevices": [{"@odata.id": _path(facts, "PCIeDevices", device)} for device in pcie_devices(facts, faults)],
    }


def enrich_manager(document: Document, facts: Facts) -> Document:
    """sushy-tools' manager document with the vendor's facts put in."""
    return {
        **document,
        "Description": f"BMC of {facts['name']} ({facts['bmc_ip']}, {facts['bmc_mac']})",
        "Manufacturer": facts["manufacturer"],
        "Model": facts["firmware"]["bmc_model"],
        "FirmwareVersion": facts["firmware"]["bmc"],
    }

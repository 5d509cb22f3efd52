"""Documents as the API gives them, for tests."""

from __future__ import annotations

from typing import Any

CLUSTER_ID = "clu-" + "1" * 32
OPERATION_ID = "op-prv-" + "2" * 32

MACHINES: list[dict[str, Any]] = [
    {
        "id": "5f3a0c9e-0b57-5d0a-8d4e-0f6a0f3d1a01",
        "name": "fra1-r1-u01",
        "site": "fra1",
        "rack": "r1",
        "device_type": "dgx-h100",
        "role": "gpu",
        "profile": "h100-sxm-8",
        "gpu_model": "H100",
        "gpu_count": 8,
        "state": "AVAILABLE",
        "health": "HEALTHY",
        "eligible": True,
        "state_since": "2026-03-01T10:00:00Z",
        "version": 7,
    },
    {
        "id": "5f3a0c9e-0b57-5d0a-8d4e-0f6a0f3d1a02",
        "name": "fra1-r1-u02",
        "site": "fra1",
        "rack": "r1",
        "device_type": "dgx-h100",
        "role": "gpu",
        "profile": "h100-sxm-8",
        "gpu_model": "H100",
        "gpu_count": 8,
        "state": "FAILED",
        "failed_step": "enrol",
        "reason": {
            "code": "machine.gpu_missing",
            "message": "GPU slot 5 is empty: 8 × H100 expected, 7 found.",
            "next_step": "Reseat or replace the GPU in slot 5, then retry.",
        },
        "health": "UNKNOWN",
        "eligible": False,
        "state_since": "2026-03-01T11:30:00Z",
        "version": 5,
    },
]
NODE = {
    "machine_id": MACHINES[0]["id"],
    "machine_name": "fra1-r1-u01",
    "claim_id": "0190-c",
    "name": "train-1-0",
    "address": "10.0.0.11",
    "ssh_port": 22,
    "gpu_model": "H100",
    "gpu_count": 8,
}
CLUSTER: dict[str, Any] = {
    "id": CLUSTER_ID,
    "name": "train-1",
    "tenant": "acme-research",
    "site": "fra1",
    "profile": "h100-sxm-8",
    "node_count": 1,
    "image": "ubuntu-24.04",
    "template": "plain",
    "state": "READY",
    "nodes": [NODE],
    "reservation_id": "res-1",
    "operation_id": OPERATION_ID,
    "created_at": "2026-03-01T12:00:00Z",
    "ready_at": "2026-03-01T12:04:10Z",
    "version": 3,
}


def operation(status: str, *steps: tuple[str, str, int, int], **more: Any) -> dict[str, Any]:
    """An operation; a step is (name, status, items done, items)."""
    return {
        "id": OPERATION_ID,
        "service": "provisioning",
        "kind": "create_cluster",
        "target_kind": "cluster",
        "target_id": CLUSTER_ID,
        "tenant": "acme-research",
        "actor": "user:alice",
        "correlation_id": "corr-7",
        "status": status,
        "steps": [
            {
                "name": name,
                "status": step_status,
                "items_done": done,
                "items_all": every,
                "attempts": 1,
                "started_at": "2026-03-01T12:00:01Z" if step_status != "PENDING" else None,
                "finished_at": "2026-03-01T12:00:13Z" if step_status == "SUCCEEDED" else None,
            }
            for name, step_status, done, every in steps
        ],
        "progress": 0.5,
        "created_at": "2026-03-01T12:00:00Z",
        "updated_at": "2026-03-01T12:04:10Z",
        **more,
    }

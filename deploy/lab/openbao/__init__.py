"""A real OpenBao server for the lab: TLS, a namespace, KV version 2 and an AppRole for a satellite."""

from deploy.lab.openbao.lab import OpenBaoLab

__all__ = ["OpenBaoLab"]

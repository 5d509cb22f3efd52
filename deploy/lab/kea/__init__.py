"""A real Kea DHCP server and its control agent on loopback, without root: the distribution's own build."""

from deploy.lab.kea.lab import KeaLab

__all__ = ["KeaLab"]

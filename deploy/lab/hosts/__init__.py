"""The operating systems of the lab's machines: an SSH server per machine, up while the machine runs.

A stand-in for what an installed machine offers: shell, SFTP, a disk that lasts until it is erased, and the GPU
tool of the vendor. Public: `HostsLab` (start, stop, the address of each machine).
"""

from deploy.lab.hosts.lab import HostAddress, HostsLab

__all__ = ["HostAddress", "HostsLab"]

"""The lab's NetBox: the released application on its own PostgreSQL (with ICU) and Redis, without root.

`NetBoxLab` is the way in; `python -m deploy.lab.netbox` is the same from a shell.
"""

from deploy.lab.netbox.instance import NetBoxPorts
from deploy.lab.netbox.lab import NetBoxLab

__all__ = ["NetBoxLab", "NetBoxPorts"]

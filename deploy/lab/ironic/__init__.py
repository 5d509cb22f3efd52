"""A real Ironic on loopback, with a hardware type whose Redfish is real and whose ramdisk is simulated.

Public: `IronicLab` (install, start, stop, where it is, how to sign in) and the faults that a test or a
demonstration can inject into a machine.
"""

from deploy.lab.ironic.faults import clear_fault, inject_fault
from deploy.lab.ironic.lab import IronicLab

__all__ = ["IronicLab", "clear_fault", "inject_fault"]

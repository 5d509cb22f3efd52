"""Ironic hardware type of the lab: everything a BMC does is real Redfish, what a ramdisk does is simulated.

Power, boot device, inspection, BIOS and firmware go through Ironic's stock Redfish code to the emulated
BMCs. Writing an image and erasing disks, which real Ironic leaves to a ramdisk on the machine, act on the
machine's folder in the lab instead. Nothing here is imported by Slipway itself.
"""

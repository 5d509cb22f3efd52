"""The lab: the real systems a site consists of, run on one machine without root and without containers.

Every part installs and keeps its state below one `var/` folder, can be started twice, and can be
started again after any of its processes was killed. What the parts are filled with is `fleet.yaml`.
"""

"""The whole system on one machine: the hub, one site and the real (or simulated) parts behind it."""

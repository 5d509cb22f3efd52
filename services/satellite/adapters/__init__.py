"""Adapters: each module speaks to one foreign system behind a port of `services.satellite.ports`."""

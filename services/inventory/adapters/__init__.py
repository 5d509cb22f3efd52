"""Where machines come from: the port, NetBox, a manifest file, and a twin for tests."""

"""Kits for tests: real servers for a session, a service without a broker, a whole service on a real one."""

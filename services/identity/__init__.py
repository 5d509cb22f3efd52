"""Identity: organizations, tenants and grants. See README.md."""

"""Slipway as one container image, and what docker-compose.yml runs of it beside the services."""

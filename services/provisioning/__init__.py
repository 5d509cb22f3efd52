"""Provisioning: clusters, images, templates and the operations on them."""

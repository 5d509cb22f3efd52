"""The services, one folder each. They never import each other."""

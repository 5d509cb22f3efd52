"""What `python -m tools.generate` writes, kind by kind: modules that map relative paths to texts, touching no disk."""

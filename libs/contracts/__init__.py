"""The published language: every message that crosses a service's border, and nothing else.

Services share these models and no code. A message's `MessageType` fixes its subject and version; the
registry in `message.py` is what schemas, documents and the start-up checks are generated from.
"""

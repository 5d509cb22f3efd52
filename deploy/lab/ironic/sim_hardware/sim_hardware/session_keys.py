"""Let Ironic remember the key it derives from a BMC's password, instead of deriving it at every request.

Ironic 39 runs PBKDF2 with 600,000 rounds, 0.4 s of processor time, each time it looks a BMC's session up
(ironic.drivers.modules.redfish.utils.SessionCache). One look at 13 machines' power takes several looks each: more
than a small computer has. The key is the same each time, and never leaves the process.
"""

from __future__ import annotations

import functools
import hashlib
from types import SimpleNamespace
from typing import Any

# More than the machines of any lab, each with a password that may change a few times.
REMEMBERED_KEYS = 1024


def remember(redfish_utils: Any) -> None:
    """Replace the derivation that `redfish_utils` (Ironic's module) uses; it uses nothing else of hashlib."""
    derive = functools.lru_cache(maxsize=REMEMBERED_KEYS)(hashlib.pbkdf2_hmac)
    redfish_utils.hashlib = SimpleNamespace(pbkdf2_hmac=derive)

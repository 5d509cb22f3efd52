"""A dictionary that outlives the process: in memory for reading, one file replaced as a whole for writing.

It stands in for sushy-tools' own, which opens an SQLite file for every look at a value: a GET of a system took
25 ms that way, and every site polls its BMCs.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any


class KeptDict(MutableMapping[Any, Any]):
    """The interface of `sushy_tools.emulator.memoize.PersistentDict`. Values are copied in and out."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._values: dict[Any, bytes] = {}
        self._path: Path | None = None

    def make_permanent(self, dbpath: str, dbfile: str) -> None:
        """Keep the dictionary in `dbpath`/`dbfile`.pickle, and read what an earlier process kept there."""
        self._path = Path(dbpath) / f"{dbfile}.pickle"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            self._values = pickle.loads(self._path.read_bytes())

    def _write(self) -> None:
        if self._path is not None:
            partial = self._path.with_suffix(".partial")
            partial.write_bytes(pickle.dumps(self._values))
            partial.replace(self._path)

    def __getitem__(self, key: Any) -> Any:
        with self._lock:
            return pickle.loads(self._values[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        with self._lock:
            kept = pickle.dumps(value)
            if self._values.get(key) != kept:
                self._values[key] = kept
                self._write()

    def __delitem__(self, key: Any) -> None:
        with self._lock:
            del self._values[key]
            self._write()

    def __iter__(self) -> Iterator[Any]:
        with self._lock:
            return iter(list(self._values))

    def __len__(self) -> int:
        return len(self._values)

"""The sums in SQLite. Several processes may add to one file, and others may read it meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from secrets import token_hex

from gateway.observe.usage.metering import COLUMNS, Cell, Sums
from gateway.settings import SettingError

VERSION = 2
WAIT_S = 5.0
"""How long a writer waits for another process that writes."""
CELL = ("hour", "tenant", "key", "tier", "model")
NO_FLEET: Mapping[tuple[int, str], float] = {}
_MISSING = ("cached_tokens", "reasoning_tokens")
_KINDS = {name: "REAL" if name == "slot_s" else "INTEGER" for name in COLUMNS}


class UsageError(SettingError):
    """The file cannot be used. The message names it, and says why."""


class UsageDatabase:
    """One connection, which is used by one thread at a time."""

    def __init__(self, path: Path, *, must_exist: bool = False) -> None:
        """Raises UsageError. `must_exist`: for reading, so that a wrong name makes no file."""
        self.path = path
        if must_exist and not path.exists():
            raise UsageError(f"{path} does not exist: give the file of `tailgate serve --usage`")
        if path.is_dir():
            raise UsageError(f"{path} is a directory: give a file, such as {path / 'usage.db'}")
        if not path.parent.is_dir():
            raise UsageError(f"{path.parent} is not a directory: make it, or give another place for {path.name}")
        try:
            self._db = sqlite3.connect(path, timeout=WAIT_S, check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version > VERSION:
                raise UsageError(f"{path} was written by a newer tailgate (version {version} of the file)")
            if version < VERSION:
                self._create()
            (self.name,) = self._db.execute("SELECT name FROM file").fetchone()
        except sqlite3.Error as error:
            raise UsageError(f"the usage file {path} cannot be used: {error}") from None

    def _create(self) -> None:
        columns = [f"{name} {kind}{'' if name in _MISSING else ' NOT NULL'}" for name, kind in _KINDS.items()]
        cell = [f"{name} {'INTEGER' if name == 'hour' else 'TEXT'} NOT NULL" for name in CELL]
        body = ", ".join((*cell, *columns, f"PRIMARY KEY ({', '.join(CELL)})"))
        self._db.execute(f"CREATE TABLE IF NOT EXISTS usage ({body}) WITHOUT ROWID")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS fleet (hour INTEGER NOT NULL, pool TEXT NOT NULL, replica_s REAL NOT NULL, "
            "PRIMARY KEY (hour, pool)) WITHOUT ROWID"
        )
        self._db.execute("CREATE TABLE IF NOT EXISTS untold (hour INTEGER PRIMARY KEY, changes INTEGER NOT NULL)")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS others (hour INTEGER NOT NULL, name TEXT NOT NULL, digest TEXT NOT NULL, "
            "value BLOB NOT NULL, PRIMARY KEY (hour, name))"
        )
        self._db.execute("CREATE TABLE IF NOT EXISTS file (name TEXT NOT NULL)")
        self._db.execute("INSERT INTO file SELECT ? WHERE NOT EXISTS (SELECT 1 FROM file)", (token_hex(8),))
        self._db.execute(f"PRAGMA user_version = {VERSION}")

    def add(self, sums: Mapping[Cell, Sums], fleet: Mapping[tuple[int, str], float] = NO_FLEET) -> None:
        """Add sums to those of the same cells, all or none. `fleet`: seconds of replicas, by hour and pool. Raises
        sqlite3.Error.
        """
        names = (*CELL, *COLUMNS)
        updates = ", ".join(_update(name) for name in COLUMNS)
        places = ", ".join("?" * len(names))
        statement = f"INSERT INTO usage ({', '.join(names)}) VALUES ({places}) ON CONFLICT DO UPDATE SET {updates}"
        rows = [(*cell, *(getattr(each, name) for name in COLUMNS)) for cell, each in sums.items()]
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.executemany(statement, rows)
            self._db.executemany(
                "INSERT INTO fleet VALUES (?, ?, ?) "
                "ON CONFLICT DO UPDATE SET replica_s = replica_s + excluded.replica_s",
                [(*where, replica_s) for where, replica_s in fleet.items()],
            )
            self._db.executemany(
                "INSERT INTO untold VALUES (?, 1) ON CONFLICT DO UPDATE SET changes = changes + 1",
                [(hour,) for hour in {where[0] for where in (*sums, *fleet)}],
            )
        except sqlite3.Error:
            if self._db.in_transaction:  # SQLite has rolled it back itself where the disk is full
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def read(self, since: int, until: int) -> Iterator[tuple[Cell, Sums]]:
        """The sums of the hours from `since` up to and without `until`. Raises sqlite3.Error."""
        found = self._db.execute(
            f"SELECT {', '.join((*CELL, *COLUMNS))} FROM usage WHERE hour >= ? AND hour < ? ORDER BY hour",
            (since, until),
        )
        for row in found:
            hour, tenant, key, tier, model, *values = row
            yield (hour, tenant, key, tier, model), Sums(*values)

    def fleet(self, since: int, until: int) -> dict[tuple[int, str], float]:
        """Seconds of replicas that got requests, by hour and pool, in the hours from `since` up to and without
        `until`. Raises sqlite3.Error.
        """
        found = self._db.execute("SELECT hour, pool, replica_s FROM fleet WHERE hour >= ? AND hour < ?", (since, until))
        return {(hour, pool): replica_s for hour, pool, replica_s in found}

    # ---- what gateways tell each other; all raise sqlite3.Error

    def hours(self, since: int) -> Iterator[int]:
        """The hours from `since` on that have sums."""
        query = "SELECT hour FROM usage WHERE hour >= ? UNION SELECT hour FROM fleet WHERE hour >= ?"
        for (hour,) in self._db.execute(query, (since, since)):
            yield hour

    def change(self, hours: Iterable[int]) -> None:
        """Take hours as changed: the store has lost them."""
        self._db.executemany("INSERT OR IGNORE INTO untold VALUES (?, 0)", [(hour,) for hour in hours])

    def untold(self) -> Sequence[tuple[int, int]]:
        """(hour, number of its changes) of each hour that has changed since it was told."""
        return self._db.execute("SELECT hour, changes FROM untold ORDER BY hour").fetchall()

    def is_told(self, hours: Iterable[tuple[int, int]]) -> None:
        """Note that hours with so many changes were told."""
        self._db.executemany("DELETE FROM untold WHERE hour = ? AND changes = ?", hours)

    def keep(self, hour: int, name: str, digest: str, value: bytes) -> None:
        """Keep the sums of another gateway's file, instead of those that it told before."""
        self._db.execute("INSERT OR REPLACE INTO others VALUES (?, ?, ?, ?)", (hour, name, digest, value))

    def digest_of(self, hour: int, name: str) -> str | None:
        """The digest of what is kept of another file."""
        found = self._db.execute("SELECT digest FROM others WHERE hour = ? AND name = ?", (hour, name)).fetchone()
        return None if found is None else found[0]

    def others(self, since: int, until: int) -> Iterator[tuple[int, str, bytes]]:
        """(hour, name of the file, value) of other gateways, in the hours from `since` up to and without `until`."""
        yield from self._db.execute("SELECT hour, name, value FROM others WHERE hour >= ? AND hour < ?", (since, until))

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def _update(name: str) -> str:
    if name in _MISSING:
        return f"{name} = CASE WHEN excluded.{name} IS NULL THEN {name} ELSE coalesce({name}, 0) + excluded.{name} END"
    return f"{name} = {name} + excluded.{name}"


def merged(into: dict[Cell, Sums], more: Iterable[tuple[Cell, Sums]]) -> None:
    """Add sums to others of the same cells."""
    for cell, sums in more:
        known = into.get(cell)
        if known is None:
            into[cell] = sums
        else:
            known.add(sums)

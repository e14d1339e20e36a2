"""The results of the readings of one server: counts them, logs what is new, and makes pauses longer."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Final

from gateway.fleet.fault import Failed, ReadFault
from gateway.fleet.target import WHOLE_SERVER, Reading, Target

log = logging.getLogger("tailgate.fleet")

# The pause after a scrape that timed out doubles up to this, or up to its interval if that is longer. A page or a list
# that is late is given up after the same time. The slowest regular reading, the list of models, has this interval.
MAX_PAUSE_S: Final = 30.0
_MEANWHILE: Final[Mapping[Reading, str]] = {
    Reading.METRICS: "meanwhile its load is estimated: check its engine and health.metrics_path in the policy",
    Reading.MODELS: "its last list stays in use, and without one it gets any model: check GET /v1/models of its engine",
}
"""For log lines: what happens while a reading fails, and where to look for the cause."""


class Readings:
    """The failures of one server's readings."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.errors: dict[Reading, Failed] = {}
        """The last error of each reading that is failing now."""
        self._logged: dict[Reading, set[Failed]] = {}
        """By reading that has not succeeded since: its errors that are in the log."""
        self._is_unreachable = False
        """Whether the log says that the server cannot be reached."""
        self.failures: Counter[tuple[Reading, ReadFault]] = Counter()
        self._timeouts: Counter[Reading] = Counter()
        """How often in a row each reading timed out."""

    def interval_s(self, reading: Reading, interval_s: float) -> float:
        """The interval of a reading, doubled for each time in a row that it timed out."""
        doublings = min(16, self._timeouts[reading])  # more exceed the bound anyway, and would overflow in the end
        return min(interval_s * 2.0**doublings, max(interval_s, MAX_PAUSE_S))

    def note(self, reading: Reading, failed: Failed | None) -> None:
        """Store the result of a reading, and log what is new: that it begins to fail, fails in a new way, or succeeds
        again.
        """
        timed_out = failed is not None and failed.fault is ReadFault.TIMEOUT
        self._timeouts[reading] = self._timeouts[reading] + 1 if timed_out else 0
        if failed is None:
            self.errors.pop(reading, None)
            self._log_success(reading)
        else:
            self.failures[reading, failed.fault] += 1
            self.errors[reading] = failed
            self._log_failure(reading, failed)

    def _log_success(self, reading: Reading) -> None:
        logged = self._logged.pop(reading, None)
        if self._is_unreachable:
            self._log_reached()
        elif logged is not None and reading is Reading.HEALTH:
            log.info("replica %s passes its health check again", self._target.name)
        elif logged is not None:
            log.info("replica %s: its %s can be read again", self._target.name, reading)

    def _log_reached(self) -> None:
        self._is_unreachable = False
        log.info("replica %s can be reached again", self._target.name)

    def _log_failure(self, reading: Reading, failed: Failed) -> None:
        """Log a failure, unless it is logged. One line is enough for a server that gives no answer to any reading. A
        server whose failures alternate gets a line for each kind of failure, not one for each reading.
        """
        target = self._target
        if failed.fault is ReadFault.UNREACHABLE:
            if not self._is_unreachable:
                self._is_unreachable = True
                log.warning(
                    "replica %s cannot be reached: %s; %s: check that an engine listens at %s",
                    target.name,
                    failed.detail,
                    self._when_failing(),
                    target.url,
                )
            return
        if self._is_unreachable and failed.fault not in WHOLE_SERVER:
            self._log_reached()
        health = self.errors.get(Reading.HEALTH)
        gives_no_answer = self._is_unreachable or (health is not None and health.fault in WHOLE_SERVER)
        if reading is not Reading.HEALTH and gives_no_answer and failed.fault in WHOLE_SERVER:
            return
        logged = self._logged.setdefault(reading, set())
        if failed in logged:
            return
        logged.add(failed)
        if reading is Reading.HEALTH:
            log.warning(
                "replica %s fails its health check: GET %s: %s; %s: check its engine and health.path in the policy",
                target.name,
                target.check_path,
                failed.detail,
                self._when_failing(),
            )
        else:
            text = "replica %s: its %s cannot be read: %s; %s"
            log.warning(text, target.name, reading, failed.detail, _MEANWHILE[reading])

    def _when_failing(self) -> str:
        """The effect of failed checks, for log lines."""
        failures = self._target.health.failures
        return f"it gets no requests after {failures} failures in a row" if failures > 1 else "it gets no requests"

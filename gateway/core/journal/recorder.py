"""The journal of a controller: every call with its arguments and its answer, converted to plain data and back.

    {"journal": 3, "run": ..., "policy": {...}, "seed": ..., "fields": {...}}     the header
    [now, call, [argument, ...], [command, ...]]                                                a call
    {"let": "2", "be": {"Policy": {...}}}                                                       defines a name
    {"gap": 17}                                                                                 17 calls are missing

A line that is a list is a call. Other lines are about the journal itself. `codec` defines the form of values. Policies,
their tiers and their models are written once and then referred to by name ("2", "2/premium"). Requests inside an answer
are referred to by their id.

A controller draws random numbers only inside its calls. So a new controller with the same policy and the same random
seed gives the same answers to the same calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.core.commands import Command, Commit, Dispatch, Ended
from gateway.core.controller import Controller
from gateway.core.journal import rows as written
from gateway.core.journal.codec import RECORDS, Code, Reader, Unreadable, Writer, brief, is_frozen, names_of
from gateway.core.policy import Model, Policy, Tier
from gateway.core.request import Random, Request
from gateway.core.results import AttemptResult, Reason, RunningAttempt
from gateway.core.sample import GatewayLoad, LimitLease, QuotaWindow, Sample

FORMAT: Final = 3


@dataclass(frozen=True, slots=True)
class Raised:
    """Answer of a call that raised an exception (a bug). `error`: type of the exception."""

    error: str


class Unnamed(Unreadable):
    """Raised for a name that no earlier line has defined."""


Told = tuple[str, tuple[object, ...], list[Command] | Raised]
"""One call: its name, its arguments, its answer."""
Row = tuple[object, str, Sequence[object], object]
"""One call as plain data: time, name, other arguments, answer."""


class Recorded(Controller):
    """A controller that reports each call, with its answer, to `tell`."""

    def __init__(self, policy: Policy, random: Random, tell: Callable[[Told], object]) -> None:
        super().__init__(policy, random)
        self._tell = tell

    def arrive(self, request: Request, now: float) -> list[Command]:
        return self._told("arrive", Controller.arrive, request, now)

    def adopt(self, request: Request, running: Sequence[RunningAttempt], now: float) -> list[Command]:
        return self._told("adopt", Controller.adopt, request, tuple(running), now)

    def number_from(self, attempt_id: int, now: float) -> list[Command]:
        return self._told("number_from", Controller.number_from, attempt_id, now)

    def sent(self, attempt_id: int, now: float) -> list[Command]:
        return self._told("sent", Controller.sent, attempt_id, now)

    def first_token(self, attempt_id: int, now: float) -> list[Command]:
        return self._told("first_token", Controller.first_token, attempt_id, now)

    def full(self, attempt_id: int, now: float) -> list[Command]:
        return self._told("full", Controller.full, attempt_id, now)

    def progress(self, attempt_id: int, tokens: int, now: float) -> list[Command]:
        return self._told("progress", Controller.progress, attempt_id, tokens, now)

    def repeats(self, attempt_id: int, now: float) -> list[Command]:
        return self._told("repeats", Controller.repeats, attempt_id, now)

    def paused(self, attempt_id: int, now: float) -> list[Command]:
        return self._told("paused", Controller.paused, attempt_id, now)

    def resumed(self, attempt_id: int, now: float) -> list[Command]:
        return self._told("resumed", Controller.resumed, attempt_id, now)

    def finish(self, attempt_id: int, result: AttemptResult, now: float) -> list[Command]:
        return self._told("finish", Controller.finish, attempt_id, result, now)

    def leave(self, request_id: int, now: float, why: Reason = Reason.CLIENT_GONE) -> list[Command]:
        return self._told("leave", Controller.leave, request_id, now, why)

    def shut(self, now: float) -> list[Command]:
        return self._told("shut", Controller.shut, now)

    def fail(self, request_id: int, now: float) -> list[Command]:
        return self._told("fail", Controller.fail, request_id, now)

    def observe(self, replica_name: str, sample: Sample, now: float) -> list[Command]:
        return self._told("observe", Controller.observe, replica_name, sample, now)

    def drain(self, replica_name: str, on: bool, now: float) -> list[Command]:
        return self._told("drain", Controller.drain, replica_name, on, now)

    def told(self, source: str, load: GatewayLoad, now: float) -> list[Command]:
        return self._told("told", Controller.told, source, load, now)

    def share_limits(self, gateways: int, leases: Sequence[LimitLease], now: float) -> list[Command]:
        return self._told("share_limits", Controller.share_limits, gateways, tuple(leases), now)

    def open_windows(self, windows: Sequence[QuotaWindow], now: float) -> list[Command]:
        return self._told("open_windows", Controller.open_windows, tuple(windows), now)

    def configure(self, policy: Policy, now: float) -> list[Command]:
        return self._told("configure", Controller.configure, policy, now)

    def recall(self, memory: Mapping[str, object], away_s: float, now: float) -> list[Command]:
        return self._told("recall", Controller.recall, memory, away_s, now)

    def lagged(self, late_s: float, now: float) -> list[Command]:
        return self._told("lagged", Controller.lagged, late_s, now)

    def wake(self, now: float) -> list[Command]:
        return self._told("wake", Controller.wake, now)

    def _told(self, name: str, method: Callable[..., list[Command]], *args: object) -> list[Command]:
        try:
            answer = method(self, *args)
        except Exception as error:
            self._tell((name, args, Raised(type(error).__name__)))
            raise
        self._tell((name, args, answer))
        return answer


CALLS: Final = frozenset(name for name in vars(Recorded) if not name.startswith("_"))
NOW_AT: Final = {"leave": 1}
"""Index of the argument `now`, for calls in which it is not the last."""


class Encoder:
    """Converts calls to plain data. Values that a call refers to are written before the first reference."""

    def __init__(self, policy: Policy) -> None:
        self._first = policy
        self._news: list[Mapping[str, object]] = []
        self._kept: list[object] = []
        """Values that have a name. They are kept alive, so that no other object can get their `id()`."""
        self._names: dict[int, Mapping[str, str]] = {}
        self._value = Writer(dict.fromkeys((Policy, Tier, Model), self._name)).value
        self._add(policy)

    def header(self, seed: int) -> dict[str, object]:
        """The first line of the journal: all that is needed to make an equal controller."""
        lists = {name: names_of(kind) for name, kind in RECORDS.items() if not is_frozen(kind)}
        return {"policy": WHOLE.value(self._first), "seed": seed, "fields": lists}

    def rows(self, calls: Iterable[Told]) -> list[Row | Mapping[str, object]]:
        """Lines for these calls, with the definitions of names that they need. Raises TypeError for a value that cannot
        be written.
        """
        out: list[Row | Mapping[str, object]] = []
        for name, args, answer in calls:
            rest = list(args)
            now = rest.pop(NOW_AT.get(name, -1))
            row = (now, name, [self._argument(item) for item in rest], self.answer(answer) if answer else ())
            if self._news:
                out += self._news
                self._news = []
            out.append(row)
        return out

    def answer(self, answer: list[Command] | Raised) -> object:
        """The answer to a call, as plain data."""
        return {"raised": answer.error} if isinstance(answer, Raised) else self.answers(answer)

    def answers(self, commands: list[Command]) -> list[object]:
        """The commands of an answer, as plain data."""
        return [self._command(command) for command in commands]

    def _argument(self, value: object) -> object:
        if isinstance(value, Request):
            slo = None if value.slo is None else self._value(value.slo)
            return written.request(
                value, self._name(value.policy), self._name(value.tier), self._name(value.model), slo
            )
        return written.finish(value) if isinstance(value, AttemptResult) else self._value(value)

    def _command(self, command: Command) -> object:
        if isinstance(command, Dispatch):
            return written.dispatch(command)
        if isinstance(command, Commit):
            return written.commit(command)
        return written.ended(command.record) if isinstance(command, Ended) else self._value(command)

    def _name(self, value: object) -> object:
        name = self._names.get(id(value))
        if name is None:
            self._add(value)
            name = self._names[id(value)]
        return name

    def _add(self, value: object) -> None:
        """Define names for a policy with its tiers and models, or for a single tier or model whose policy was never
        recorded.
        """
        self._kept.append(value)
        name = str(len(self._kept))
        self._names[id(value)] = {type(value).__name__: name}
        if isinstance(value, Policy):
            for key, tier in value.tiers.items():
                self._names.setdefault(id(tier), {"Tier": f"{name}/{key}"})
            for key, model in value.models.items():
                self._names.setdefault(id(model), {"Model": f"{name}/{key}"})
        if len(self._kept) > 1:
            self._news.append({"let": name, "be": WHOLE.value(value)})


class Decoder:
    """Reads calls. Raises `Unreadable` for data that is not a journal, or has an unknown format."""

    def __init__(self, header: Mapping[str, object]) -> None:
        fields, seed = header.get("fields"), header.get("seed")
        if header.get("journal") != FORMAT or not isinstance(fields, dict):
            raise Unreadable(f"the header is not that of a journal in format {FORMAT}")
        if not isinstance(seed, int):
            raise Unreadable("the header has no seed")
        self.seed = seed
        self.fields: Mapping[str, Sequence[str]] = fields
        """By type, the names of the fields that are written as a list, in the version that wrote the journal."""
        self.open_requests: dict[int, Request] = {}
        """Requests under way, by id."""
        self._named: dict[tuple[str, str], object] = {}
        references: dict[str, Code] = {"Request": self._over}
        for kind in ("Policy", "Tier", "Model"):
            references[kind] = self._finder(kind)
        self._reader = Reader(fields, references)
        policy = self._let("1", header.get("policy"))
        if not isinstance(policy, Policy):
            raise Unreadable("the header has no policy")
        self.policy = policy

    def let(self, row: Mapping[str, object]) -> None:
        """Read a line that defines a name."""
        self._let(str(row.get("let")), row.get("be"))

    def call(self, row: Sequence[object]) -> tuple[str, tuple[object, ...]]:
        """The call and its arguments, in the order in which the controller takes them."""
        if len(row) != 4 or row[1] not in CALLS or not isinstance(row[2], list):
            raise Unreadable(f"{brief(row)} is not a call")
        name = str(row[1])
        args = [self._reader.value(item) for item in row[2]]
        for item in args:
            if isinstance(item, Request):
                self.open_requests[item.id] = item
        args.insert(NOW_AT.get(name, len(args)), self._reader.value(row[0]))
        return name, tuple(args)

    def answer(self, row: Sequence[object]) -> list[object] | Raised:
        """The controller's answer. Must be called after `call` for the same row."""
        written = row[3]
        if isinstance(written, dict) and "raised" in written:
            return Raised(str(written["raised"]))
        if not isinstance(written, list):
            raise Unreadable(f"{brief(written)} is not an answer")
        return [self._reader.value(command) for command in written]

    @staticmethod
    def ends(command: object) -> int | None:
        """Id of the request that a written command ends; None if the command is not `Ended`."""
        match command:
            case {"Ended": [{"Record": [{"Request": int(request_id)}, *_]}]}:
                return request_id
            case _:
                return None

    def _let(self, name: str, data: object) -> object:
        value = self._reader.value(data)
        if not isinstance(value, Policy | Tier | Model):
            raise Unreadable(f"{name} is neither a policy nor a tier nor a model")
        self._named[type(value).__name__, name] = value
        if isinstance(value, Policy):
            for key, tier in value.tiers.items():
                self._named["Tier", f"{name}/{key}"] = tier
            for key, model in value.models.items():
                self._named["Model", f"{name}/{key}"] = model
        return value

    def _finder(self, kind: str) -> Code:
        def find(name: object) -> object:
            value = self._named.get((kind, str(name)))
            if value is None:
                raise Unnamed(f"no earlier line describes {kind} {name!r}")
            return value

        return find

    def _over(self, request_id: object) -> object:
        """The request of a record. The decoder forgets it, because no later line refers to it."""
        request = self.open_requests.pop(request_id, None) if isinstance(request_id, int) else None
        if request is None:
            raise Unreadable(f"request {request_id!r} never arrived, or ended before")
        return request


class Replay:
    """Replays recorded calls on a new controller."""

    def __init__(self, header: Mapping[str, object], random: Callable[[int], Random]) -> None:
        self._decoder = Decoder(header)
        self._encoder = Encoder(self._decoder.policy)
        self._lengths = {name: len(names) for name, names in self._decoder.fields.items()}
        self.controller = Controller(self._decoder.policy, random(self._decoder.seed))

    def let(self, row: Mapping[str, object]) -> None:
        """Read a line that defines a name."""
        self._decoder.let(row)

    def answer(self, row: Sequence[object]) -> object:
        """The new controller's answer to the call of a row, as plain data. It equals the recorded answer if the replay
        is exact.
        """
        name, args = self._decoder.call(row)
        try:
            answer: list[Command] = getattr(self.controller, name)(*args)
        except Exception as error:  # noqa: BLE001 - whatever the journal says it raised
            return self._encoder.answer(Raised(type(error).__name__))
        for command in answer:
            if isinstance(command, Ended):
                self._decoder.open_requests.pop(command.record.request.id, None)
        return [self._as_then(command) for command in self._encoder.answers(answer)]

    def _as_then(self, written: object) -> object:
        """A written command without the fields that its class (or its record) did not have yet when the journal was
        written.
        """
        if not isinstance(written, dict):
            return written
        return {
            name: [self._as_then(item) for item in row[: self._lengths.get(name, len(row))]]
            if isinstance(row, tuple | list)
            else row
            for name, row in written.items()
        }


WHOLE: Final = Writer({})

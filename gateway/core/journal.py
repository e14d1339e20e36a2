"""The journal of a controller: every call with its arguments and its answer, as plain data and back.

    {"journal": 1, "run": ..., "policy": {...}, "seed": ..., "share": ..., "fields": {...}}     the header
    [now, call, [argument, ...], [[command, [field, ...]], ...]]                                a call
    {"let": "2", "type": "Policy", "value": {...}}                                              a name for later use
    {"gap": 17}                                                                                 17 calls are missing

A list is a call, an object says something about the journal. What a call is, and what its arguments are, is read off
the controller itself: every public method that answers with commands is one. Policies, their tiers and their models
are written once and referred to by name ("2", "2/premium"); a request inside an answer is its id.

The draws of a controller happen inside its calls, so a controller that is new, with the same policy and a random source
of the same seed, gives the same answers to the same calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast, get_args, get_type_hints

from gateway.core.controller import Controller
from gateway.core.model import Ask, Command, Ended, Random
from gateway.core.plain import Coder, Coders, Unreadable
from gateway.core.rules import Model, Policy, Tier

FORMAT = 1
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Raised:
    """The call did not answer: there was a bug. `error` is the type of the exception."""

    error: str


Told = tuple[str, tuple[object, ...], list[Command] | Raised]
"""One call as it happened: its name, its arguments, its answer."""
Row = tuple[object, str, Sequence[object], object]
"""One call as plain data: now, name, the other arguments, answer."""


Codes = list[tuple[int, Callable[[object], object]]]
"""How those arguments are written or read that are not plain, by their places without `now`."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments of a call: their types, and which of them is `now`."""

    types: tuple[object, ...]
    now: int


def _calls() -> dict[str, Signature]:
    """Every public method of the controller that answers with commands."""
    found = {}
    for name, method in inspect.getmembers(Controller, inspect.isfunction):
        hints = {} if name.startswith("_") else get_type_hints(method)
        if hints.pop("return", None) == list[Command]:
            found[name] = Signature(tuple(hints.values()), list(hints).index("now"))
    return found


CALLS: Mapping[str, Signature] = _calls()


def recorded(controller: Controller, tell: Callable[[Told], None]) -> Controller:
    """The same controller to whoever calls it; each call is also told, once it is answered.

    A call that the controller makes to itself is part of the one from outside, and not told.
    """
    return cast(Controller, _Recorded(controller, tell))


class _Recorded:
    def __init__(self, controller: Controller, tell: Callable[[Told], None]) -> None:
        self._controller = controller
        for name, method in inspect.getmembers(controller, inspect.ismethod):
            if not name.startswith("_"):
                setattr(self, name, _telling(name, method, tell) if name in CALLS else method)

    def __getattr__(self, name: str) -> object:
        return getattr(self._controller, name)


def _telling(
    name: str, method: Callable[..., list[Command]], tell: Callable[[Told], None]
) -> Callable[..., list[Command]]:
    def call(*args: object) -> list[Command]:
        try:
            answer = method(*args)
        except Exception as error:
            tell((name, args, Raised(type(error).__name__)))
            raise
        tell((name, args, answer))
        return answer

    return call


class Encoder:
    """Writes calls. Called for every request, some five times, hence its shortcuts for what is plain already."""

    def __init__(self, policy: Policy) -> None:
        self._news: list[Mapping[str, object]] = []
        self._names: dict[int, str] = {}
        self._kept: list[object] = []
        """What has a name, so that no other object ever gets its id()."""
        kinds: tuple[type, ...] = (Policy, Tier, Model)
        references = {kind: Coder(self._name, None) for kind in kinds}
        coders = Coders({**references, Ask: Coder(lambda ask: cast(Ask, ask).id, None)})
        self._commands = {kind: cast(Callable[[object], object], coders.of(kind).encode) for kind in get_args(Command)}
        self._arguments = {name: _arguments(call, coders, "encode") for name, call in CALLS.items()}
        self._plain = {
            name: call for name, call in CALLS.items() if call.now == len(call.types) - 1 and not self._arguments[name]
        }
        """Calls whose arguments are plain, `now` the last of them: most."""
        self._fields = coders.lists
        self._add(policy)

    def header(self, seed: int, share: float) -> dict[str, object]:
        """What a fresh controller needs, for the first line."""
        policy = cast(Callable[[object], object], WHOLE.of(Policy).encode)(self._kept[0])
        return {"policy": policy, "seed": seed, "share": share, "fields": self._fields}

    def rows(self, calls: Iterable[Told]) -> list[Row | Mapping[str, object]]:
        """So many calls, for as many lines, and before each what it refers to for the first time."""
        out: list[Row | Mapping[str, object]] = []
        for name, args, answer in calls:
            now, rest = (args[-1], args[:-1]) if name in self._plain else self._split(name, args)
            written = self.answer(answer) if answer else ()
            if self._news:
                out += self._news
                self._news = []
            out.append((now, name, rest, written))
        return out

    def answer(self, answer: list[Command] | Raised) -> object:
        """The answer to a call."""
        if isinstance(answer, Raised):
            return {"raised": answer.error}
        commands = self._commands
        return [(command.__class__.__name__, commands[command.__class__](command)) for command in answer]

    def _split(self, name: str, args: tuple[object, ...]) -> tuple[object, Sequence[object]]:
        at = CALLS[name].now
        rest = list(args[:at] + args[at + 1 :])
        for index, code in self._arguments[name]:
            if index < len(rest) and rest[index] is not None:
                rest[index] = code(rest[index])
        return args[at], rest

    def _name(self, value: object) -> str:
        name = self._names.get(id(value))
        return self._add(value) if name is None else name

    def _add(self, value: object) -> str:
        """Give a name to a policy and all that is in it, or to something of a policy that was never seen."""
        self._kept.append(value)
        name = self._names[id(value)] = str(len(self._kept))
        if isinstance(value, Policy):
            for part in (value.tiers, value.models):
                for key, item in part.items():
                    self._names.setdefault(id(item), f"{name}/{key}")
        if len(self._kept) > 1:
            code = cast(Callable[[object], object], WHOLE.of(type(value)).encode)
            self._news.append({"let": name, "type": type(value).__name__, "value": code(value)})
        return name


class Decoder:
    """Reads calls. Raises `Unreadable` for what is no journal, or one of another version."""

    def __init__(self, header: Mapping[str, object]) -> None:
        if header.get("journal") != FORMAT:
            raise Unreadable(f"the header is not that of a journal in format {FORMAT}")
        fields = _typed(header, "fields", dict)
        self._named: dict[type, dict[str, object]] = {Policy: {}, Tier: {}, Model: {}}
        self.asks: dict[int, Ask] = {}
        """Those that are not over, by id."""
        references = {kind: Coder(None, self._finder(kind)) for kind in self._named}
        coders = Coders({**references, Ask: Coder(None, self._over)}, fields)
        self._answer = cast(Callable[[object], object], coders.of(list[Command]).decode)
        self._arguments = {name: _arguments(call, coders, "decode") for name, call in CALLS.items()}
        self.policy = cast(Policy, self._let("1", "Policy", header.get("policy")))
        self.seed: int = _typed(header, "seed", int)
        self.share: float = _typed(header, "share", float)

    def let(self, row: Mapping[str, object]) -> None:
        """Take note of a name."""
        self._let(_typed(row, "let", str), _typed(row, "type", str), row.get("value"))

    def call(self, row: Sequence[object]) -> tuple[str, tuple[object, ...]]:
        """The call and its arguments, in the order in which the controller takes them."""
        match row:
            case [int() | float() as now, str(name), [*rest], _] if name in CALLS:
                for index, code in self._arguments[name]:
                    if index < len(rest) and rest[index] is not None:
                        rest[index] = code(rest[index])
                self.asks |= {ask.id: ask for ask in rest if isinstance(ask, Ask)}
                rest.insert(CALLS[name].now, now)
                return name, tuple(rest)
        raise Unreadable(f"{row!r} is no call")

    def answer(self, row: Sequence[object]) -> list[Command] | Raised:
        """What the controller answered, after `call` of the same row."""
        match row[3]:
            case {"raised": str(error)}:
                return Raised(error)
        return cast(list[Command], self._answer(row[3]))

    def _let(self, name: str, kind: str, data: object) -> object:
        """What a policy, a tier or a model that has a name is."""
        types = {known.__name__: known for known in self._named}
        if kind not in types:
            raise Unreadable(f"{kind} is none of {', '.join(types)}")
        value = cast(Callable[[object], object], WHOLE.of(types[kind]).decode)(data)
        self._named[types[kind]][name] = value
        if isinstance(value, Policy):
            self._named[Tier] |= {f"{name}/{key}": tier for key, tier in value.tiers.items()}
            self._named[Model] |= {f"{name}/{key}": model for key, model in value.models.items()}
        return value

    def _finder(self, kind: type) -> Callable[[object], object]:
        named = self._named[kind]

        def find(name: object) -> object:
            if isinstance(name, str) and name in named:
                return named[name]
            raise Unreadable(f"nothing said before what {kind.__name__} {name!r} is")

        return find

    def _over(self, ask_id: object) -> Ask:
        """The request of a record; nothing is said of it afterwards."""
        ask = self.asks.pop(cast(int, ask_id), None)
        if ask is None:
            raise Unreadable(f"request {ask_id!r} never arrived, or ended before")
        return ask


class Replay:
    """A fresh controller that is told what another one was told."""

    def __init__(self, header: Mapping[str, object], random: Callable[[int], Random]) -> None:
        self._decoder = Decoder(header)
        self._encoder = Encoder(self._decoder.policy)
        self.controller = Controller(self._decoder.policy, random(self._decoder.seed), self._decoder.share)

    def let(self, row: Mapping[str, object]) -> None:
        """Take note of a name."""
        self._decoder.let(row)

    def answer(self, row: Sequence[object]) -> object:
        """What it answers to the call of a row, as plain data: what stands in the row, if all is well."""
        name, args = self._decoder.call(row)
        try:
            answer: list[Command] = getattr(self.controller, name)(*args)
        except Exception as error:  # noqa: BLE001 - whatever the journal says it raised
            return {"raised": type(error).__name__}
        for command in answer:
            if isinstance(command, Ended):
                self._decoder.asks.pop(command.record.ask.id, None)
        return self._encoder.answer(answer)


WHOLE = Coders()


def _arguments(call: Signature, coders: Coders, way: str) -> Codes:
    """Those that are not plain already, by their places without `now`; a request that arrives is written in full."""
    types = call.types[: call.now] + call.types[call.now + 1 :]
    found = [coders.whole(Ask) if kind is Ask else coders.of(kind) for kind in types]
    return [(index, code) for index, coder in enumerate(found) if (code := getattr(coder, way)) is not None]


def _typed(row: Mapping[str, object], name: str, kind: type[T]) -> T:
    value = row.get(name)
    if not isinstance(value, kind):
        raise Unreadable(f"{name} is {value!r}, not a {kind.__name__}")
    return value

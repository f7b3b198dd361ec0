"""From protocols and a setting to a program: which event of which rank comes after which.

What this catches: nothing; it lays out what ``search`` explores. What it cannot say: see ``events``.
"""

from __future__ import annotations

from collections.abc import Iterable

from validation.sync.events import Event, Kind, Program
from validation.sync.exchange import Act, Exchange, Kernel, Subject
from validation.sync.place import Place, Stream, cleared, origin, parity
from validation.sync.setting import MLA, MOE, STORES, Setting, last, launches, small
from validation.sync.words import Words

UNGROUPED = 8  # rows up to which the experts' calls are not grouped


class Builder:
    """Lays out one program. Kept as a class because events are numbered as they come."""

    def __init__(self, subject: Subject, setting: Setting) -> None:
        self.subject, self.setting = subject, setting
        self.program = Program(setting.ranks)
        self.words = Words(self.program, setting)

    def build(self) -> Program:
        """All steps of all ranks."""
        for rank in range(self.setting.ranks):
            self.program.plans.append([])
            stream, batches = Stream(), self.setting.batches
            if self.setting.other_batches and self.setting.other_batches[0] == rank:
                batches = self.setting.other_batches[1]
            for step, batch in enumerate(batches):
                self._step(rank, stream, step, batch)
        return self.program.close()

    def _step(self, rank: int, stream: Stream, step: int, batch: int) -> None:
        layers, moe, mla = self.setting.layers, 0, 0
        moes = sum(letter in MOE for letter in layers)
        self._launch(rank, stream, "Embed", Place(step, batch, 0, 0, 0, moes))
        for layer, letter in enumerate(layers):
            if step == 0 and self.setting.stops and layer >= self.setting.stops:
                return
            place = Place(step, batch, layer, moe, mla, moes)
            for name in launches(self.setting, layer, batch):
                self._launch(rank, stream, name, place)
            moe, mla = moe + (letter in MOE), mla + (letter in MLA)
        for name in last(self.setting):
            self._launch(rank, stream, name, Place(step, batch, len(layers), moe, mla, moes))

    def _launch(self, rank: int, stream: Stream, name: str, place: Place) -> None:
        """One kernel: its points, its chains, its completion."""
        kernel = self.subject.kernels[name]
        self.program.plans[rank].append(f"{name} {place.batch}")
        at = f"step {place.step}, layer {place.layer}, {name}"
        start, waited = self._begin(rank, stream, kernel, place, at)
        done: list[int] = [waited] if kernel.wait != "never" else []
        early = [
            i for chain in kernel.early for i in self._chain(rank, stream, chain, place, at, [start], [])[0]
        ]
        tails = list(early)
        for chain in kernel.chains:
            after = [waited] if kernel.wait == "first" else [start]
            tail, local = self._chain(rank, stream, chain, place, at, after, early)
            tails, done = tails + tail, done + local
        issued = self._point(rank, f"{at} issued", tails or [start])
        end = self._point(rank, f"{at} complete", [*done, issued])
        points = {"entry": start, "waited": waited, "issued": issued, "end": end}
        self._advance(stream, kernel, place, points)

    def _advance(self, stream: Stream, kernel: Kernel, place: Place, points: dict[str, int]) -> None:
        """Where the rank is after a launch."""
        if kernel.name.startswith("Expert"):
            stream.calls["common"] = stream.calls.get("common", 0) + 1
            stream.calls["call"] = stream.calls.get("call", 0) + (place.batch > UNGROUPED)
        end = points["end"]
        if kernel.stream == "main":
            stream.start, stream.waited, stream.end = points["entry"], points["waited"], end
            stream.trigger = points[kernel.trigger]
            stream.consumer = end if kernel.name.startswith("Oproj") else stream.consumer
        elif kernel.stream == "side":
            stream.side = end
        else:
            stream.host.append(end)

    def _begin(self, rank: int, stream: Stream, kernel: Kernel, place: Place, at: str) -> tuple[int, int]:
        """The points at which a kernel starts and has waited."""
        missing = self.setting.missing
        if kernel.stream == "side":
            fork = stream.start if "side_begin" in missing else stream.consumer
            start = self._point(rank, f"{at} starts", [fork, stream.side])
            return start, start
        if kernel.stream == "host":
            start = self._point(
                rank, f"{at} starts", [stream.waited if "copy_landed" in missing else stream.end]
            )
            return start, start
        behind = [stream.trigger] if stream.trigger >= 0 else []
        waits = [stream.end] if stream.end >= 0 else []
        if "Tail" in kernel.name and stream.side >= 0 and "shared_done" not in missing:
            behind.append(stream.side)
        if kernel.name == "Embed" and place.step >= 2 and "host_done" not in missing:
            behind += stream.host[: place.step - 1]
        start = self._point(rank, f"{at} starts", behind)
        return start, self._point(rank, f"{at} has waited", [start, *waits])

    def _chain(
        self,
        rank: int,
        stream: Stream,
        chain: Iterable[Act],
        place: Place,
        at: str,
        after: list[int],
        early: list[int],
    ) -> tuple[list[int], list[int]]:
        """Events of one chain: its last in program order, and the local stores that completion awaits."""
        front, local = list(after), []
        for act in chain:
            exchange = self.subject.exchanges[act.exchange]
            if not self._modelled(exchange, place):
                continue
            if act.verb == "publish":
                behind = front + (early if exchange.plain else [])
                stores = self._publish(rank, stream, exchange, place, at, behind)
                local += stores if exchange.pattern == "local" else []
            elif act.verb == "rearm":
                local += self._rearm(rank, exchange, place, stream, at, front)
            else:
                front = self._poll(rank, exchange, place, stream, at, front, act.verb == "read")
        return front, local

    def _modelled(self, exchange: Exchange, place: Place) -> bool:
        """Local exchanges count only where asked for; x_moe only where the small-batch chain runs."""
        if exchange.name == "x_moe" and not (
            small(self.setting.plan, place.batch) and self.setting.layers[place.layer] in STORES
        ):
            return False
        if exchange.name == "embedding" and not self.setting.barrier:
            return False
        return exchange.pattern != "local" or exchange.name in self.setting.targets

    def _publish(
        self, rank: int, stream: Stream, exchange: Exchange, place: Place, at: str, after: list[int]
    ) -> list[int]:
        number = parity(exchange, place, stream)
        targets = [rank] if exchange.pattern == "local" else list(range(self.setting.ranks))
        slot = 0 if exchange.pattern == "local" or exchange.slots == "shared" else rank
        other = self.setting.other_token
        strange = bool(other and other[0] == rank and place.step >= other[1])
        stream.versions[exchange.name] = stream.versions.get(exchange.name, 0) + 1
        made = []
        for group in self.words.live(exchange, place.batch):
            tag = self.words.tag(stream, exchange, place, rank, group, strange)
            if not exchange.canonical:
                tag = 0
            for target in targets:
                for word in self.words.of(target, exchange, number, slot, group):
                    earlier = [stream.stored[word]] if word in stream.stored else []
                    event = self._event(Kind.STORE, rank, at, exchange, [word], [tag], [*after, *earlier])
                    stream.stored[word] = event
                    made.append(event)
        return made

    def _poll(
        self,
        rank: int,
        exchange: Exchange,
        place: Place,
        stream: Stream,
        at: str,
        front: list[int],
        plain: bool,
    ) -> list[int]:
        made = origin(exchange, place)
        number = parity(exchange, made, stream)
        words: list[int] = []
        tags: list[int] = []
        guard: list[int] = []
        for group in self.words.live(exchange, place.batch):
            for slot in self.words.sources(exchange):
                source = rank if exchange.pattern == "local" else slot
                found = self.words.of(rank, exchange, number, slot, group)
                words += found
                tags += [self.words.tag(stream, exchange, made, source, group)] * len(found)
                guard += found if exchange.judged == "all" else found[:1]
        looks = [] if plain or exchange.plain else guard
        return [self._event(Kind.POLL, rank, at, exchange, words, tags, front, looks)]

    def _rearm(
        self, rank: int, exchange: Exchange, place: Place, stream: Stream, at: str, front: list[int]
    ) -> list[int]:
        number = cleared(exchange, place, stream)
        rows = (exchange.first_rows if place.first else exchange.rows) or place.batch
        words = [
            word
            for group in self.words.live(exchange, rows)
            for slot in self.words.sources(exchange)
            for word in self.words.of(rank, exchange, number, slot, group)
        ]
        return [self._event(Kind.REARM, rank, at, exchange, words, [0] * len(words), front)] if words else []

    def _point(self, rank: int, label: str, after: list[int]) -> int:
        event = Event(
            len(self.program.events), Kind.POINT, rank, label, after=tuple(i for i in after if i >= 0)
        )
        self.program.events.append(event)
        return event.index

    def _event(
        self,
        kind: Kind,
        rank: int,
        at: str,
        exchange: Exchange,
        words: list[int],
        tags: list[int],
        after: list[int],
        guard: list[int] | None = None,
    ) -> int:
        index = len(self.program.events)
        after = [i for i in after if i >= 0]
        self.program.events.append(
            Event(
                index,
                kind,
                rank,
                at,
                exchange.name,
                tuple(words),
                tuple(tags),
                tuple(guard or ()),
                tuple(after),
            )
        )
        return index


def build(subject: Subject, setting: Setting) -> Program:
    """The program of a subject in a setting."""
    return Builder(subject, setting).build()

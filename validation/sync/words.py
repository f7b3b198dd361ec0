"""The words of the mailboxes and the identities of what is published in them, numbered as they come.

What this catches: nothing; ``build`` asks it. What it cannot say: sizes in bytes; an exchange that is not
asked about has one word.
"""

from __future__ import annotations

from validation.sync.events import Program, Word
from validation.sync.exchange import Exchange
from validation.sync.place import Place, Stream
from validation.sync.setting import Setting, groups

GARBAGE = 1  # the tag of what an unfilled mailbox holds


class Words:
    """Adds words and tags to a program. A class because both are numbered."""

    def __init__(self, program: Program, setting: Setting) -> None:
        self.program, self.setting = program, setting
        every = (*setting.batches, *(setting.other_batches[1] if setting.other_batches else ()))
        self.groups = groups(every)
        self.program.names.append("garbage")
        self.ids: dict[Word, int] = {}
        self.tags: dict[tuple[object, ...], int] = {}

    def detail(self, exchange: Exchange) -> tuple[tuple[int, ...], int]:
        """Row groups and words a fragment."""
        if exchange.name not in self.setting.targets:
            return (self.groups[-1],), 1
        return self.groups, 1 if exchange.plain or exchange.counter else 2

    def live(self, exchange: Exchange, rows: int) -> list[int]:
        """Groups of rows below ``rows``; an exchange without detail has one."""
        uppers, _ = self.detail(exchange)
        return [g for g, upper in enumerate(uppers) if upper <= rows or len(uppers) == 1]

    def sources(self, exchange: Exchange) -> list[int]:
        return (
            [0]
            if exchange.pattern == "local" or exchange.slots == "shared"
            else list(range(self.setting.ranks))
        )

    def of(self, rank: int, exchange: Exchange, parity: int, slot: int, group: int) -> list[int]:
        """Words of one row group of one slot; made on first use."""
        found = []
        for part in range(self.detail(exchange)[1]):
            word = Word(rank, exchange.alias or exchange.name, parity, slot, group, part)
            if word not in self.ids:
                index = self.ids[word] = len(self.program.words)
                self.program.words.append(word)
                self.program.initial.append(0 if exchange.filled else GARBAGE)
                if exchange.plain:
                    self.program.plain.add(index)
                if exchange.counter:
                    self.program.counters.add(index)
            found.append(self.ids[word])
        return found

    def tag(
        self, stream: Stream, exchange: Exchange, place: Place, source: int, group: int, other: bool = False
    ) -> int:
        """The identity of a publication; what only order protects is numbered as its rank writes it."""
        version = stream.versions.get(exchange.name, 0) if exchange.plain else 0
        key = (exchange.name, *((version,) if version else (place.step, place.layer)), source, group, other)
        if key not in self.tags:
            self.tags[key] = len(self.program.names)
            where = f"step {place.step} layer {place.layer}"
            self.program.names.append(
                f"{exchange.name} of {where} by rank {source}" + other * ", other token"
            )
            if other:
                self.program.foreign.add(self.tags[key])
        return self.tags[key]

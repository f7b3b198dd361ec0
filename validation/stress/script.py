"""What one rank does: the acts of every step, taken from the same data that ``lockstep sync`` proves.

A step launches the kernels that ``validation.sync.setting`` names for its batch; each kernel's chains give
its acts in program order. Acts on mailboxes that reach other ranks are kept (``SPREADS``); those of one rank
alone, and what ``NOT_RUN`` names, are not. Re-arms that are unordered with the rest of their kernel are put
first or last by the seed, rank by rank, as the protocol allows.

What this catches: exchanges that the runner has no form for (``UserError``). What it cannot say: when kernels
start (programmatic launches); a lane makes its acts one after another.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from validation.errors import UserError
from validation.stress.layout import STAGE, Layout, sentinel, signed
from validation.sync.exchange import Act, Exchange, Kernel, Subject
from validation.sync.setting import MLA, MOE, Setting, last, launches

# The subject's 93 layers: a reply is as long as its steps, whatever shorter pattern a run stresses.
# Layer 92, the last, is MLA as layer 91 is (kimi_k3_ops.md, section 1.1).
SUBJECT = "D" + "KKAK" * 22 + "KKAA"
VERBS = {"publish": 1, "poll": 2, "read": 3, "rearm": 4}
WHOLE, OWNER, CHUNK = 0, 1, 2
CANONICAL, ALL_JUDGED, SHARED_SLOT, FOLDED, STAGED, PULLED, UNFENCED = 1, 2, 4, 8, 16, 32, 64
# Which words go where, and what is published that another exchange's sum gave.
SPREADS = {
    "oproj": WHOLE,
    "oproj_recv": OWNER,
    "oproj_gather": CHUNK,
    "front": CHUNK,
    "latent": WHOLE,
    "latent_recv": OWNER,
    "latent_gather": CHUNK,
    "rs": OWNER,
    "out": CHUNK,
    "h2": CHUNK,
    "h2_tp8": CHUNK,
    "dcp_q": CHUNK,
    "dcp_partial": OWNER,
    "dcp_lse": OWNER,
    "ring": WHOLE,
}
# The other exchanges between ranks, and why they are not run.
NOT_RUN = {
    "embedding": "a collective of the framework, which is trusted: it has no mailbox of the subject's",
    "framework": "a collective of the framework, which is trusted: it has no mailbox of the subject's",
}
# Exchanges of ``SPREADS`` that no step of the subject has.
BARE = {"ring": "a library's all-reduce by itself: in layers R alone, as planted faults have them"}
RELAYED = {"oproj_gather": "oproj_recv", "latent_gather": "latent_recv", "out": "rs"}
KEYS = {name: number for number, name in enumerate(SPREADS)}
HOLDS = {"pairs": 0, "bytes": 1, "log sums": 2}
FORMS = {
    WHOLE: "whole rows to all ranks",
    OWNER: "columns to their owner",
    CHUNK: "own columns to all ranks",
}


@dataclass(frozen=True)
class Step:
    """One act of a rank, ready for the table: parities are ``(use + step * advance) % parities``; ``late``:
    delays before it."""

    verb: str
    exchange: str
    layer: int
    kernel: str
    launch: int
    base: int
    spread: int
    use: int
    clears: int
    advance: int
    parities: int
    rows: int
    key: int
    relays: int
    flags: int
    slot: int
    sentinel: int
    holds: int
    turn: int = 0
    stage: int = 0
    late: int = 0

    def row(self) -> list[int]:
        """Fields in the order of the kernels' table."""
        fields = [VERBS[self.verb], self.base, self.use, self.clears, self.advance, self.parities, self.rows]
        fields += [self.key, self.relays, self.spread == WHOLE, self.spread == OWNER, self.slots]
        fields += [bool(self.flags & flag) for flag in (CANONICAL, ALL_JUDGED, FOLDED, STAGED)]
        fields += [self.turn, self.stage, bool(self.flags & PULLED), not self.flags & UNFENCED]
        fields += [self.late, signed(self.sentinel), self.holds, self.launch]
        return [int(field) for field in fields]

    @property
    def slots(self) -> int:
        """Words from one source's slot to the next; 0 where all write into one."""
        return 0 if self.spread == CHUNK or self.flags & SHARED_SLOT else self.slot

    def parity(self, step: int) -> int:
        return (self.use + step * self.advance) % self.parities


@dataclass(frozen=True)
class Site:
    """Where in a step a kernel stands."""

    layer: int
    moe: int
    mla: int
    moes: int


def reaches(subject: Subject) -> list[Exchange]:
    """The exchanges between ranks that are run. Raises UserError for one that is neither run nor named."""
    for exchange in subject.exchanges.values():
        if exchange.pattern != "local" and exchange.name not in SPREADS | NOT_RUN:
            raise UserError(
                f"the runner has no form for exchange '{exchange.name}'; give it one in SPREADS, or a reason "
                "in NOT_RUN (validation/stress/script.py)"
            )
    return [e for e in subject.exchanges.values() if e.name in SPREADS]


def acts(
    subject: Subject, setting: Setting, batch: int, layout: Layout, rank: int = 0, seed: int = 0
) -> list[Step]:
    """All acts of one rank in a step of ``batch`` rows."""
    moes = sum(letter in MOE for letter in setting.layers)
    shuffle = random.Random(f"{seed} {rank} {batch}")
    found: list[Step] = []
    launch = moe = mla = 0
    for layer in range(len(setting.layers) + 1):
        inside = layer < len(setting.layers)
        for name in launches(setting, layer, batch) if inside else last(setting):
            kernel = subject.kernels[name]
            made = [
                _step(subject, act, kernel, Site(layer, moe, mla, moes), launch, layout)
                for act in _flat(kernel, shuffle)
            ]
            found += [step for step in made if step]
            launch += any(made)
        moe += inside and setting.layers[layer] in MOE
        mla += inside and setting.layers[layer] in MLA
    return found


def _flat(kernel: Kernel, shuffle: random.Random) -> list[Act]:
    """Acts of all chains in one order: chains that only re-arm come first or last."""
    mixed = [chain for chain in kernel.chains if any(act.verb != "rearm" for act in chain)]
    loose = [chain for chain in kernel.chains if all(act.verb == "rearm" for act in chain)]
    before = [chain for chain in loose if shuffle.random() < 0.5]
    after = [chain for chain in loose if chain not in before]
    return [act for chain in (*kernel.early, *before, *mixed, *after) for act in chain]


def _step(subject: Subject, act: Act, kernel: Kernel, site: Site, launch: int, layout: Layout) -> Step | None:
    """One act as it is run; None if it stays on its rank."""
    exchange = subject.exchanges[act.exchange]
    if exchange.name not in SPREADS:
        return None
    origin = (
        replace(site, layer=site.layer - 1, moe=site.moe - 1)
        if act.verb == "poll" and exchange.name == "out"
        else site
    )
    use, advance = use_of(exchange, origin)
    relayed = RELAYED.get(exchange.name)
    flags = CANONICAL * exchange.canonical | ALL_JUDGED * (exchange.judged == "all")
    flags |= SHARED_SLOT * (exchange.slots == "shared") | FOLDED * (SPREADS[exchange.name] != OWNER)
    rows = (exchange.first_rows if site.moe == 0 else exchange.rows) if act.verb == "rearm" else 0
    return Step(
        act.verb, exchange.name, origin.layer, kernel.name, launch,
        base=layout.base(exchange.alias or exchange.name), spread=SPREADS[exchange.name],
        use=use % exchange.parities, clears=cleared_by(exchange, site, use), advance=advance,
        parities=exchange.parities, rows=rows, key=_key(exchange.name, origin.layer),
        relays=_key(relayed, origin.layer) if relayed else -1, flags=flags,
        slot=layout.slot, sentinel=sentinel(exchange), holds=HOLDS[exchange.holds], stage=layout.base(STAGE),
    )  # fmt: skip


def _key(name: str, layer: int) -> int:
    """The number of a publication within its step."""
    return layer * len(KEYS) + KEYS[name]


def use_of(exchange: Exchange, site: Site) -> tuple[int, int]:
    """What counts the parities of an exchange in a step, and by how much a step advances it."""
    counts: dict[str, tuple[int, int]] = {
        "one": (0, 0),
        "layer": (site.layer, 0),
        "moe": (site.moe, 0),
        "mla": (site.mla, 0),
        "running": (site.moe, site.moes),
    }
    if exchange.parity not in counts:
        raise UserError(
            f"the runner counts no parity by '{exchange.parity}', as exchange '{exchange.name}' asks"
        )
    return counts[exchange.parity]


def cleared_by(exchange: Exchange, site: Site, use: int) -> int:
    """What a re-arm clears, in the same count (``validation.sync.build``)."""
    n = exchange.parities
    if exchange.clears == "previous" and site.moe == 0 and exchange.parity != "running":
        return (site.moes - 1) % n
    shift = {"current": 0, "previous": -1, "other": 1, "next": 1}[exchange.clears]
    return (use + shift) % n


def table(steps: list[Step]) -> list[list[int]]:
    """Rows of the kernels' table."""
    return [step.row() for step in steps]


def exchanges(steps: list[Step]) -> int:
    """Exchanges that a step completes: one for each wait; a read without one is another look at them."""
    return sum(step.verb == "poll" for step in steps)


def exchanges_a_token() -> int:
    """Exchanges of one decode step of the subject, in one shot."""
    from validation.stress.layout import layout
    from validation.sync.kimi_k3 import subject

    k3 = subject()
    return exchanges(acts(k3, Setting(2, SUBJECT, barrier=False), 8, layout(reaches(k3), 2, 1)))

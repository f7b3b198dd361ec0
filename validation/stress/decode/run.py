"""A decode of many steps on ranks apart, compared with the same calls in one process, and its verdict.

A crew of ranks and a crew of one, which plays all ranks without mailboxes, walk the same steps, chunk by
chunk. After every step each rank must hold the digests of the one process: what all ranks hold alike, and its
own state and history. At checkpoints (every chunk, and the end) all that a rank holds is compared, whoever's
slots and pages. Faults are planted first, over the first steps: in the mailboxes of one rank, and in its
state; one that goes unnoticed makes the run undecided.

What this catches: stale, early, missing and torn words, parities and re-arms that go wrong in the company of
the step's own kernels and graphs, ranks that hang or die. What it cannot catch: what ranks apart and together
have wrong alike, which ``lockstep step`` judges; orders of stores that no run had (``lockstep sync``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from validation.report.schema import Verdict
from validation.stress.crew import Crew, Lost
from validation.stress.decode.boxes import NEVER_REARMED, STALE_PARITY, lanes_for, place
from validation.stress.decode.engine import STATE_FLIPPED
from validation.stress.job import Answer, Decode, Order
from validation.stress.outcome import Death, verdict
from validation.stress.skew import QUIET, of
from validation.subjects.kimi_k3.config import scaled

ENGINE = "validation.stress.decode.engine"
READY = {"cpu": 300.0, "cuda": 600.0}  # seconds to build the model and compile
MODES = ["delays", "fragments", "jitter"]  # of stress, which disturb the ranks
PILOT = {"cpu": 2, "cuda": 40}  # steps in which a planted fault must be noticed
IMPATIENCE = {"cpu": 5.0, "cuda": 1.0}  # seconds of a wait where a hang is planted
FAULTS = (NEVER_REARMED, STALE_PARITY, STATE_FLIPPED)
DIGITS = 32  # of a step: half of them what all ranks hold alike
HANG = 2


@dataclass
class Results:
    """What a walk gave. ``steps``: that all made and that were compared. ``checkpoints``: by their step, one
    digest of all that all ranks hold. ``noticed``: planted faults, and what was noticed of them.
    ``seconds``: of the ranks, of the one process, of everything."""

    job: Decode
    device: str
    steps: int = 0
    exchanges: int = 0
    failures: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    checkpoints: dict[int, str] = field(default_factory=dict)
    noticed: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def doubts(self) -> list[str]:
        """Why a walk without failures is no pass."""
        missed = [fault for fault in FAULTS if not self.noticed.get(fault)]
        found = [f"planted fault {fault} went unnoticed" for fault in missed]
        if self.steps < self.job.steps:
            found.append(f"stopped after {self.steps:,} of {self.job.steps:,} steps")
        return found

    @property
    def verdict(self) -> Verdict:
        return verdict(self.failures, self.errors, self.doubts)


@dataclass
class Party:
    """A crew that walks, and what it has left so far: of each rank, ``DIGITS`` hex digits a step."""

    crew: Crew
    patience: float
    left: list[str] = field(default_factory=list)
    held: list[dict[str, str]] = field(default_factory=list)
    harm: Callable[[Crew, int], None] | None = None
    going: bool = False
    exchanges: int = 0
    seconds: float = 0.0

    def prepare(self, job: Decode) -> None:
        """Forget everything and prepare a walk."""
        self.left, self.held, self.seconds = [""] * job.ranks, [], 0.0
        self.crew.tell(Order("decode", decode=job))
        self.crew.gather("ready", READY[self.crew.device])
        self.patience = job.patience

    def go(self, steps: int) -> None:
        self.crew.tell(Order("walk", steps=steps))
        self.going = True

    def give_up(self) -> None:
        """End a chunk that was begun; what it gave counts for nothing."""
        if self.going:
            self.crew.stop()
            self.come()

    def come(self) -> tuple[list[str], list[Death]]:
        """What went wrong in the chunk that was begun, and who died in it."""
        began, self.going = time.monotonic(), False
        answers, deaths = self.crew.listen(self.patience, self.harm)
        self.seconds += max([answer.seconds for answer in answers], default=time.monotonic() - began)
        if not deaths:
            new = [left for answer in answers for left in answer.left]
            self.left = [before + more for before, more in zip(self.left, new, strict=True)]
            self.held = [digests for answer in answers for digests in answer.digests]
            self.exchanges = min(answer.exchanges for answer in answers)
        return hangs(answers), deaths

    def digests(self, step: int) -> list[dict[str, str]]:
        """Of what each rank left at one step, by name."""
        self.crew.tell(Order("digests", steps=step))
        return [digests for answer in self.crew.gather("digests", 60.0) for digests in answer.digests]


def hangs(answers: list[Answer]) -> list[str]:
    """Waits that ran out, in the order of the step: the first names who is missing."""
    found = []
    for answer in answers:
        for record in answer.records:
            _, _, kind, step, act, source, parity = record[:7]
            if kind == HANG:
                words = (
                    f"hang: rank {answer.rank}, step {step}, {place(act)}, parity {parity}: waits for rank "
                )
                found.append((step, act, f"{words}{source}, whose publication is missing"))
    return [words for _, _, words in sorted(found)]


def decode(
    results: Results,
    seconds: float = float("inf"),
    say: Callable[[str], None] = lambda line: None,
    harm: Callable[[Crew, int], None] | None = None,
) -> None:
    """Plant, walk, compare, into ``results``. ``seconds``: after which the walk ends behind a chunk. ``harm``
    is called with the ranks and the steps done while they walk, by drills. Raises UserError where ranks
    cannot be started."""
    job, device, began = results.job, results.device, time.monotonic()
    lanes = lanes_for(scaled(job.ranks, layers=job.layers, block=job.block))
    with (
        Crew(1, lanes, device, engine=ENGINE) as single,
        Crew(job.ranks, lanes, device, engine=ENGINE) as crew,
    ):
        whole, ranks = Party(single, job.patience), Party(crew, job.patience)
        say(f"{job.ranks} ranks and one process for all are there")
        pilot = min(PILOT[device], job.steps, job.chunk)
        try:
            whole.prepare(replace(job, skew=QUIET))
            if _walked(results, [whole], pilot):
                _plant(results, ranks, whole, pilot, say)
                _walk(results, ranks, whole, pilot, began + seconds, say, harm)
        except Lost as lost:
            results.errors += [death.words() for death in lost.deaths]
        results.exchanges = ranks.exchanges
        results.seconds = {"ranks": ranks.seconds, "one process": whole.seconds}
    results.seconds["all"] = time.monotonic() - began


def _walked(results: Results, parties: list[Party], steps: int) -> bool:
    """Walk a chunk with parties side by side; whether nothing hung or died. On GPUs the one process shares a
    rank's device: one more thing that makes this rank late."""
    for party in parties:
        party.go(steps)
    for party in parties:
        if results.failures or results.errors:
            party.give_up()
            continue
        hung, deaths = party.come()
        results.failures += hung[:1]
        results.errors += [_last_seen(party, death) for death in deaths]
    return not (results.failures or results.errors)


def _last_seen(party: Party, death: Death) -> str:
    from validation.stress import memory

    step = int(party.crew.shared.control[death.rank, memory.STEP])
    if party.crew.count == 1:
        return f"the process for all ranks: {death.words()}; last seen in step {step}"
    return f"{death.words()}; last seen in step {step}"


def _walk(
    results: Results,
    ranks: Party,
    whole: Party,
    pilot: int,
    until: float,
    say: Callable[[str], None],
    harm: Callable[[Crew, int], None] | None,
) -> None:
    """All steps, by chunks; the one process has walked the first ``pilot`` steps."""
    job, began = results.job, time.monotonic()
    ranks.prepare(replace(job, skew=of(MODES, results.device, job.seed)))
    ranks.harm = harm
    for first, steps in chunks(job, pilot):
        parties = [ranks] if first == 0 else [ranks, whole]
        if not _walked(results, parties, steps):
            break
        results.failures += parted(ranks, whole, first)[:1]
        if results.failures:
            break
        results.steps = first + steps
        results.checkpoints[results.steps] = checkpoint(whole)
        now = time.monotonic()
        each = (now - began) / results.steps
        left = (job.steps - results.steps) * each
        say(f"step {results.steps:,} of {job.steps:,}, {1000 * each:.1f} ms a step, {left:.0f} s left")
        if now + each * job.chunk > until:
            break


def chunks(job: Decode, pilot: int) -> Iterator[tuple[int, int]]:
    """(first step, steps) of every chunk; the first is the pilot."""
    yield 0, pilot
    for first in range(pilot, job.steps, job.chunk):
        yield first, min(job.chunk, job.steps - first)


def parted(ranks: Party, whole: Party, first: int = 0) -> list[str]:
    """Where ranks part from the one process: at the first step from ``first`` on, and at its end in all that
    they hold. One line each, the first tensor named."""
    steps = min(len(left) for left in (*ranks.left, *whole.left)) // DIGITS
    for step in range(first, steps):
        at = slice(step * DIGITS, (step + 1) * DIGITS)
        if [left[at] for left in ranks.left] != [left[at] for left in whole.left]:
            return _named(f"step {step}", ranks.digests(step), whole.digests(step), ranks.crew.count)
    return _named(f"checkpoint after step {steps - 1}", ranks.held, whole.held, ranks.crew.count)


def _named(when: str, apart: list[dict[str, str]], together: list[dict[str, str]], count: int) -> list[str]:
    found = []
    for rank in range(count):
        wrong = [name for name, digest in apart[rank].items() if digest != together[rank][name]]
        if wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            found.append(f"{when}, rank {rank}: {wrong[0]}{more} parts from the walk in one process")
    return found


def checkpoint(whole: Party) -> str:
    """One digest over all that is held: what ranks apart and together agreed on."""
    import hashlib

    return hashlib.sha256(repr(whole.held).encode()).hexdigest()[:16]


def _plant(results: Results, ranks: Party, whole: Party, steps: int, say: Callable[[str], None]) -> None:
    """Each fault over the first steps, which the one process has walked: what is noticed of it."""
    for fault in FAULTS:
        say(f"planted fault {fault}")
        patience = IMPATIENCE[results.device] if fault == STALE_PARITY else results.job.patience
        skew = of(MODES, results.device, results.job.seed + 1)
        ranks.prepare(replace(results.job, skew=skew, fault=fault, patience=patience))
        ranks.go(steps)
        hung, deaths = ranks.come()
        if deaths:
            results.errors += [_last_seen(ranks, death) for death in deaths]
            return
        noticed = hung or parted(ranks, whole)
        results.noticed[fault] = noticed[0] if noticed else ""

"""What ``lockstep step`` walks: scenarios by name, each with its model, by tier.

Catches: an unknown name. Cannot catch: what no scenario brings about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from validation.errors import UserError
from validation.subjects.kimi_k3.config import Config, real_widths, scaled

# Providers whose kernels run in an interpreter on a CPU, hundreds of times slower: shorter walks.
SLOW = ("triton",)
INTERPRETED = 4  # steps of their long walks


@dataclass(frozen=True)
class Item:
    """One walk: the ``scenario`` (or ``free_running``, ``memory`` or ``long`` for ``steps`` steps) on a
    model. ``turns``: the vanilla step takes every other step."""

    name: str
    scenario: str
    layers: int = 5
    block: int = 2
    drafts: int = 0
    ranks: int = 2
    dcp: bool = False
    steps: int = 0
    turns: bool = False
    widths: str = "scaled"

    def config(self) -> Config:
        if self.widths == "real":
            return real_widths(self.layers, self.ranks, self.drafts)
        return scaled(self.ranks, self.drafts, self.layers, self.block, self.dcp)

    def line(self, seed: int) -> str:
        """As reports name it: ``step/plain:layers=14,ranks=2,drafts=0:0``."""
        more = f",steps={self.steps}" if self.steps else ""
        more += f",widths={self.widths}" if self.widths != "scaled" else ""
        return f"step/{self.name}:layers={self.layers},ranks={self.ranks},drafts={self.drafts}{more}:{seed}"


QUICK = (
    Item("plain", "plain", layers=14, block=3),
    Item("verify", "verify", drafts=2),
    Item("tenants", "tenants"),
    Item("preempt", "preempt", drafts=1),
    Item("pages", "pages"),
    Item("sharded", "plain", dcp=True),
    Item("four_ranks", "plain", ranks=4),
    Item("acceptance", "acceptance", drafts=2),
    Item("snapshots", "snapshots"),
    Item("prefill", "prefill", layers=4),
    Item("alternating", "verify", drafts=1, turns=True),
    Item("memory", "memory", steps=128),
    Item("free_running", "free_running", steps=16),
)
# Four layers have every kind of layer, if but once or twice; ``tenants`` does all that ``plain`` does.
QUICK_SLOW = (
    Item("verify", "verify", layers=4, drafts=1),
    Item("tenants", "tenants"),
    Item("free_running", "free_running", layers=4, steps=4),
)
BY_NAME_SLOW = (Item("plain", "plain"),)
FULL = (
    *QUICK[1:-2],
    Item("plain", "plain", layers=14, block=3),
    Item("wide_blocks", "plain", layers=14, block=12),
    Item("batches", "batches"),
    Item("long_acceptance", "acceptance", drafts=4),
    Item("eight_ranks", "plain", ranks=8),
    Item("long_verify", "verify", layers=14, block=3, drafts=7),
    Item("sharded_verify", "verify", drafts=3, dcp=True),
    Item("free_running", "free_running", layers=14, block=3, steps=64),
    Item("memory", "memory", steps=16_384),
    Item("long", "long", drafts=3, steps=1000),
)


def cost(item: Item, provider: str) -> float:
    """About how long a walk takes, in units of the cheapest: what is begun first, so that none is left to
    run alone."""
    interpreted = 12.0 if provider in SLOW else 1.0
    if item.scenario == "memory":  # one operation a token
        return interpreted * item.steps / 10
    return interpreted * item.layers * item.ranks * (1 + item.drafts) * (1 + item.steps)


@dataclass(frozen=True)
class Choice:
    """What of the walks is chosen. ``only``: names; ``steps``: of the free-running and the long walk;
    ``layers``: of every model; ``widths``: ``scaled`` or ``real``, which the long walk alone has."""

    tier: str = "quick"
    only: tuple[str, ...] = ()
    steps: int | None = None
    device: str = "cpu"
    widths: str = "scaled"
    layers: int | None = None


def chosen(provider: str, choice: Choice) -> list[Item]:
    """The walks of a provider on a device."""
    if choice.widths == "real":
        if choice.device == "cpu":
            raise UserError("--widths real needs 40 GB of weights on a GPU; add --device cuda")
        layers, steps = choice.layers or 3, choice.steps or 1000
        return [Item("long", "long", layers, 2, drafts=1, ranks=8, steps=steps, widths="real")]
    found = items(provider, choice.tier, choice.only, choice.steps, choice.device)
    return [replace(item, layers=choice.layers) if choice.layers else item for item in found]


def items(
    provider: str, tier: str, only: Sequence[str] = (), steps: int | None = None, device: str = "cpu"
) -> list[Item]:
    """The walks of a provider at the scaled-down widths."""
    slow = provider in SLOW and device == "cpu"
    every = FULL if tier == "full" else QUICK_SLOW if slow else QUICK
    known = {item.name for item in (*FULL, *QUICK)}
    if unknown := [name for name in only if name not in known]:
        raise UserError(f"unknown walk '{unknown[0]}'; known: {', '.join(sorted(known))}")
    found = [item for item in every if not only or item.name in only]
    others = (*(BY_NAME_SLOW if slow else ()), *QUICK, *FULL)
    for name in dict.fromkeys(only):  # of another tier
        found += [] if name in {i.name for i in found} else [i for i in others if i.name == name][:1]
    if slow:
        found = [replace(i, steps=INTERPRETED) if i.scenario in ("long", "memory") else i for i in found]
        found = [replace(i, drafts=1) if i.scenario == "long" else i for i in found]  # half the work
    return [replace(item, steps=steps) if steps and item.steps else item for item in found]

"""What a rank runs is what the checker explores: the same acts on the same parities, kernel by kernel."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from validation.commands.stress import SHORT
from validation.errors import UserError
from validation.stress.campaign import BATCHES, DEPLOYMENTS
from validation.stress.layout import Layout, layout
from validation.stress.script import BARE, HOLDS, NOT_RUN, SPREADS, SUBJECT, acts, exchanges, reaches
from validation.sync.build import build
from validation.sync.events import Kind
from validation.sync.exchange import Act, Exchange, Subject
from validation.sync.fault import Edit, planted
from validation.sync.kimi_k3 import subject
from validation.sync.protocols import PROTOCOLS, Protocol
from validation.sync.setting import Setting
from validation.sync.verify import examine

KINDS = {"publish": Kind.STORE, "poll": Kind.POLL, "read": Kind.POLL, "rearm": Kind.REARM}


def boxes(ranks: int = 2) -> Layout:
    return layout(reaches(subject()), ranks, 1)


def explored(setting: Setting) -> Counter[tuple[object, ...]]:
    """(kind, exchange, parity, step, kernel) of rank 0 as the checker lays it out."""
    program = build(subject(), setting)
    found: Counter[tuple[object, ...]] = Counter()
    for event in program.events:
        if event.rank or event.exchange not in SPREADS:
            continue
        step, _, kernel = event.label.split(", ")
        word = program.words[event.words[0]]
        if event.kind is Kind.STORE and word.rank:
            continue  # one publication is one act, and one event for each rank that it reaches
        found[event.kind, event.exchange, word.parity, int(step.removeprefix("step ")), kernel] += 1
    return found


def run(setting: Setting) -> Counter[tuple[object, ...]]:
    """The same of what a rank runs."""
    found: Counter[tuple[object, ...]] = Counter()
    for step, batch in enumerate(setting.batches):
        for act in acts(subject(), setting, batch, boxes()):
            parity = act.parity(step)
            if act.verb == "rearm":
                parity = (act.clears + step * act.advance) % act.parities
            found[KINDS[act.verb], act.exchange, parity, step, act.kernel] += 1
    return found


@pytest.mark.parametrize("dcp", [False, True])
@pytest.mark.parametrize("plan", [8, 16])
@pytest.mark.parametrize("layers", ["DKA", "DKKAKKKAK", "RRRR", "LL"])
def test_acts_and_parities_are_those_that_are_proved(layers: str, plan: int, dcp: bool) -> None:
    setting = Setting(2, layers, (64, 1, 8, 2, 33, 16), plan, dcp, barrier=False)
    assert run(setting) == explored(setting)


def test_every_exchange_between_ranks_is_run_or_named_with_a_reason() -> None:
    between = {e.name for e in subject().exchanges.values() if e.pattern != "local"}
    assert between == SPREADS.keys() | NOT_RUN.keys()
    assert not SPREADS.keys() & NOT_RUN.keys()
    run = {
        act.exchange
        for _, plan, dcp in DEPLOYMENTS
        for batch in BATCHES
        for act in acts(subject(), Setting(2, SHORT, (batch,), plan, dcp, barrier=False), batch, boxes())
    }
    assert run == SPREADS.keys() - BARE.keys(), "what a plain run of stress exchanges"


def test_an_exchange_that_is_neither_run_nor_named_is_refused() -> None:
    more = subject()
    more.exchanges["gossip"] = Exchange("gossip", "peer", "0x80000000")
    with pytest.raises(UserError, match="the runner has no form for exchange 'gossip'"):
        reaches(more)
    more.exchanges["gossip"] = Exchange("gossip", "local", "0x80000000")
    assert reaches(more) == reaches(subject())


# The framework's collectives synchronise, too, and stress does not run them.
WITHOUT_FRAMEWORK = tuple(
    Edit("drop", "Dense", value=Act(verb, "framework"))
    for verb in ("publish", "poll")  # type: ignore[arg-type]
)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_what_a_plain_run_exchanges_is_safe_without_the_framework(protocol: Protocol) -> None:
    if not any(subject().exchanges[name].pattern != "local" for name in protocol.exchanges):
        return
    edited = planted(subject(), WITHOUT_FRAMEWORK)
    for _, plan, dcp in DEPLOYMENTS:
        if plan in protocol.plans and dcp >= protocol.dcp:
            for batches in ((8, 64, 8), (64, 1, 1), (2, 33)):
                targets = tuple(name for name in protocol.exchanges if name in SPREADS)
                setting = Setting(2, SHORT, batches, plan, dcp, targets, barrier=False)
                assert examine(edited, setting).answer == "safe", setting


def test_another_parity_would_be_noticed() -> None:
    setting = Setting(2, "DKA", (8,), barrier=False)
    wrong = subject()
    wrong = Subject(wrong.exchanges | {"oproj": replace(wrong.exchanges["oproj"], parities=1)}, wrong.kernels)
    found = Counter(act.parity(0) for act in acts(wrong, setting, 8, boxes()) if act.exchange == "oproj")
    right = Counter(act.parity(0) for act in acts(subject(), setting, 8, boxes()) if act.exchange == "oproj")
    assert found != right


def test_a_step_of_the_whole_model_has_461_exchanges_and_554_in_two_shots() -> None:
    setting = Setting(8, SUBJECT)
    assert exchanges(acts(subject(), setting, 8, boxes(8))) == 461
    assert exchanges(acts(subject(), setting, 64, boxes(8))) == 554


def test_sharded_caches_add_three_exchanges_to_each_of_24_layers() -> None:
    setting = Setting(8, SUBJECT, dcp=True)
    assert exchanges(acts(subject(), setting, 8, boxes(8))) == 461 + 3 * 24


def test_words_and_sentinels_are_those_of_the_data() -> None:
    found = {
        act.exchange: (act.sentinel, act.holds)
        for act in acts(subject(), Setting(2, "A", dcp=True, barrier=False), 8, boxes())
    }
    assert found["dcp_q"] == (0xFFFFFFFF, HOLDS["bytes"])
    assert found["dcp_partial"] == (0x80000000, HOLDS["pairs"])
    assert found["dcp_lse"] == (0xFFFFFFFF, HOLDS["log sums"])
    assert found["oproj"] == (0x80000000, HOLDS["pairs"])


def test_an_exchange_without_a_form_is_refused() -> None:
    odd = subject()
    odd = Subject(odd.exchanges | {"front": replace(odd.exchanges["front"], parity="call")}, odd.kernels)
    with pytest.raises(UserError, match="counts no parity by 'call'"):
        acts(odd, Setting(2, "DKA"), 8, boxes())

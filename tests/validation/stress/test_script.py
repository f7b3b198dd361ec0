"""What a rank runs is what the checker explores: the same acts on the same parities, kernel by kernel."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from validation.errors import UserError
from validation.stress.layout import Layout, layout
from validation.stress.script import SPREADS, acts, exchanges, reaches
from validation.sync.build import build
from validation.sync.events import Kind
from validation.sync.exchange import Subject
from validation.sync.kimi_k3 import subject
from validation.sync.setting import Setting

KINDS = {"publish": Kind.STORE, "poll": Kind.POLL, "rearm": Kind.REARM}


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


@pytest.mark.parametrize("plan", [8, 16])
@pytest.mark.parametrize("layers", ["DKA", "DKKAKKKAK", "RRRR", "LL"])
def test_acts_and_parities_are_those_that_are_proved(layers: str, plan: int) -> None:
    setting = Setting(2, layers, (64, 1, 8, 2, 33, 16), plan, barrier=False)
    assert run(setting) == explored(setting)


def test_another_parity_would_be_noticed() -> None:
    setting = Setting(2, "DKA", (8,), barrier=False)
    wrong = subject()
    wrong = Subject(wrong.exchanges | {"oproj": replace(wrong.exchanges["oproj"], parities=1)}, wrong.kernels)
    found = Counter(act.parity(0) for act in acts(wrong, setting, 8, boxes()) if act.exchange == "oproj")
    right = Counter(act.parity(0) for act in acts(subject(), setting, 8, boxes()) if act.exchange == "oproj")
    assert found != right


def test_a_step_of_the_whole_model_has_461_exchanges_and_554_in_two_shots() -> None:
    setting = Setting(8, "D" + "KKAK" * 23)
    assert exchanges(acts(subject(), setting, 8, boxes(8))) == 461
    assert exchanges(acts(subject(), setting, 64, boxes(8))) == 554


def test_an_exchange_without_a_form_is_refused() -> None:
    odd = subject()
    odd = Subject(odd.exchanges | {"front": replace(odd.exchanges["front"], parity="call")}, odd.kernels)
    with pytest.raises(UserError, match="counts no parity by 'call'"):
        acts(odd, Setting(2, "DKA"), 8, boxes())

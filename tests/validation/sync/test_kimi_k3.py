"""The subject's protocols: safe as specified, unsafe where the specification says so."""

from dataclasses import replace

import pytest

from validation.sync.kimi_k3 import subject
from validation.sync.protocols import PROTOCOLS, Protocol, protocol_named
from validation.sync.setting import Setting, pattern
from validation.sync.verify import examine, settings


def answers(name: str, layers: str, batches: tuple[int, ...]) -> set[str]:
    runs = settings(subject(), protocol_named(name), 2, layers, batches, ())
    return {examine(subject(), setting).answer for setting in runs}


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_it_is_safe_with_two_ranks_over_changing_batches(protocol: Protocol) -> None:
    runs = settings(subject(), protocol, 2, protocol.layers, None, ())
    assert len(runs) >= 14
    for setting in runs[::5]:
        assert examine(subject(), setting).answer == "safe", setting


def test_every_mailbox_of_the_subject_is_judged_in_some_protocol() -> None:
    judged = {name for protocol in PROTOCOLS for name in protocol.exchanges}
    assert set(subject().exchanges) - judged == {"ring", "embedding", "framework"}


@pytest.mark.parametrize("count", [1, 4, 7])
def test_a_count_of_expert_layers_of_1_mod_3_is_unsafe(count: int) -> None:
    assert answers("tail", pattern(count), (8, 8)) == {"unsafe"}


@pytest.mark.parametrize("count", [2, 3, 6, 8])
def test_other_counts_are_safe_for_the_tail(count: int) -> None:
    assert answers("tail", pattern(count), (8, 64)) == {"safe"}


@pytest.mark.parametrize("name", ["small_batch_tp8", "small_batch_tp16"])
def test_an_odd_count_is_unsafe_where_layers_count_the_parities(name: str) -> None:
    assert answers(name, pattern(3), (1, 1)) == {"unsafe"}
    assert answers(name, pattern(2), (1, 1)) == {"safe"}


def test_an_odd_count_is_unsafe_for_ungrouped_images_with_grouped_calls_between() -> None:
    assert answers("experts", pattern(3), (8, 64, 8)) == {"unsafe"}
    assert answers("experts", pattern(2), (8, 64, 8)) == {"safe"}


@pytest.mark.parametrize(("layers", "answer"), [("DKK", "safe"), ("DKKK", "unsafe")])
def test_two_tail_parities_are_saved_by_the_o_projection_if_the_count_is_even(
    layers: str, answer: str
) -> None:
    protocols = subject()
    for name in ("latent", "rs"):
        protocols.exchanges[name] = replace(protocols.exchanges[name], parities=2)
    setting = Setting(3, layers, (8, 8), targets=("latent", "rs"))
    assert examine(protocols, setting).answer == answer


@pytest.mark.parametrize(
    ("stages", "clears", "answer"),
    [(3, "previous", "safe"), (2, "previous", "unsafe"), (3, "next", "unsafe")],
)
def test_a_bare_ring_needs_three_stages_and_clears_the_one_before(
    stages: int, clears: str, answer: str
) -> None:
    protocols = subject()
    protocols.exchanges["ring"] = replace(protocols.exchanges["ring"], parities=stages, clears=clears)
    assert examine(protocols, Setting(3, "RRRR", (8, 8), targets=("ring",))).answer == answer


def test_one_o_projection_parity_is_unsafe_without_another_exchange_between() -> None:
    protocols = subject()
    protocols.exchanges["oproj"] = replace(protocols.exchanges["oproj"], parities=1)
    assert examine(protocols, Setting(2, "LL", (8,), targets=("oproj",))).answer == "unsafe"
    assert examine(protocols, Setting(2, "KK", (8,), targets=("oproj",))).answer == "safe"

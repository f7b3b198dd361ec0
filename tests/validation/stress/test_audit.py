"""Canaries and mailboxes after a run: what was spoilt is named, and what the protocol leaves is not."""

from __future__ import annotations

import torch

from validation.stress import memory
from validation.stress.audit import audit
from validation.stress.job import Job
from validation.stress.layout import layout
from validation.stress.schedule import scheduled
from validation.stress.script import reaches
from validation.sync.kimi_k3 import subject

BOXES = layout(reaches(subject()), 2, 1)
SCHEDULE = scheduled(Job("x", "DKA", batches=(8,), steps=3), 0, BOXES, None)


def filled() -> torch.Tensor:
    own = torch.zeros(BOXES.words, dtype=torch.int32)
    memory.fill(own, BOXES)
    return own


def test_new_memory_is_in_order() -> None:
    assert audit(filled(), BOXES, SCHEDULE, 3) == []


def test_a_word_in_a_canary_is_named_with_its_neighbour() -> None:
    own = filled()
    region = BOXES.region("front")
    own[region.start + region.words + 3] = 0
    assert audit(own, BOXES, SCHEDULE, 3) == [
        "canary: 1 words behind front were overwritten, the first 3 words in"
    ]


def test_a_mailbox_that_is_re_armed_at_once_must_be_empty() -> None:
    own = filled()
    own[BOXES.base("oproj") + 7] = 1
    (found,) = audit(own, BOXES, SCHEDULE, 3)
    assert found == "mailbox: oproj holds 1 words in parity 0, which should be re-armed"


def test_a_deferred_re_arm_leaves_the_last_parity_alone() -> None:
    own, parity = filled(), BOXES.ranks * BOXES.slot
    own[BOXES.base("latent") + parity] = 1  # two layers with experts: the second used parity 1
    assert audit(own, BOXES, SCHEDULE, 3) == []
    own[BOXES.base("latent")] = 1
    assert audit(own, BOXES, SCHEDULE, 3) == [
        "mailbox: latent holds 1 words in parity 0, which should be re-armed"
    ]

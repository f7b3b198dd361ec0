"""A prompt in one pass is the prompt token by token, bit for bit, for the vanilla step; what it is told is
checked."""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from validation.errors import UserError
from validation.step.executor import vanilla
from validation.step.walk import Hooks, Walk, forced
from validation.subjects.kimi_k3.batch import Batch
from validation.subjects.kimi_k3.prompt import prompt_batch
from validation.subjects.kimi_k3.weights import random_weights

sys.path.append(str(Path(__file__).parents[2] / "walks"))
from step_case import small


@functools.cache
def _weights():  # type: ignore[no-untyped-def]
    return random_weights(small())


def _walk(hooks: Hooks | None = None) -> Walk:
    return Walk(small(), _weights(), vanilla(), None, hooks or Hooks())


def _prompt(tokens: int) -> list[int]:
    return [ids[0][0] for ids in forced(small(), 1, tokens)]


def test_one_pass_equals_token_by_token_over_a_page_and_in_chunks() -> None:
    prompt = _prompt(small().page + 2)
    chunked, stepped = _walk(), _walk()
    request = chunked.admit()
    logits = [chunked.prefill(request, prompt[:5]), chunked.prefill(request, prompt[5:])]
    stepped.admit()
    alone = [stepped.step([[token]]) for token in prompt]
    assert torch.equal(torch.cat(logits), torch.cat(alone))
    assert chunked.state.digest() == stepped.state.digest()
    assert request.length == len(prompt)
    assert chunked.found == stepped.found == []


def test_a_token_that_sees_its_future_is_found() -> None:
    def stage(batch: Batch) -> Batch:
        return replace(batch, lengths=batch.lengths.amax(1, keepdim=True).expand_as(batch.lengths).clone())

    walk = _walk(Hooks(stage=stage))
    walk.prefill(walk.admit(), _prompt(4))
    assert walk.found[0].op == "staging"
    assert walk.found[0].output == "lengths"


def test_a_request_behind_a_verify_step_has_its_state_elsewhere() -> None:
    request = _walk().admit()
    with pytest.raises(UserError, match="state is in 2"):
        prompt_batch(small(), replace(request, accepted=2), [1, 2])

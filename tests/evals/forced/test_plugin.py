"""The plug-in against both of vLLM's interfaces, without vLLM.

The interfaces are fakes written from the signatures of 0.32 and 0.33. Where LOCKSTEP_VLLM_SOURCE names a
folder with vLLM's sources (an unpacked wheel), the same tests also run against the interface modules in
there, with stubs for what those import. That a real V1 runner drives it rightly is tested in
test_real_server.py; no V2 runner was driven.
"""

from __future__ import annotations

import enum
import importlib
import importlib.util
import os
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[3]
PLUGIN = ROOT / "evals" / "forced" / "vllm_plugin"
SOURCE = os.environ.get("LOCKSTEP_VLLM_SOURCE", "")
V1, V2 = "vllm.v1.sample.logits_processor.interface", "vllm.v1.worker.gpu.sample.logits_processor.interface"
WORDS = 12  # vocabulary


def fake_v1(module: Any) -> None:
    class MoveDirectionality(enum.Enum):
        UNIDIRECTIONAL, SWAP = 1, 2

    @dataclass(frozen=True)
    class BatchUpdate:
        batch_size: int
        removed: Any
        added: Any
        moved: Any

    class LogitsProcessor(ABC):
        @classmethod
        def validate_params(cls, sampling_params: Any) -> None:
            return None

        @abstractmethod
        def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None: ...

        @abstractmethod
        def apply(self, logits: Any) -> Any: ...

        @abstractmethod
        def is_argmax_invariant(self) -> bool: ...

        @abstractmethod
        def update_state(self, batch_update: Any) -> None: ...

    module.MoveDirectionality, module.BatchUpdate = MoveDirectionality, BatchUpdate
    module.LogitsProcessor = LogitsProcessor


def fake_v2(module: Any) -> None:
    @dataclass(frozen=True)
    class LogitsProcRequestState:
        device: Any
        max_num_reqs: int
        vocab_size: int
        all_token_ids: Any
        prompt_len: Any
        prefill_len: Any
        total_len: Any

    @dataclass(frozen=True)
    class LogitsContext:
        expanded_idx_mapping: Any
        idx_mapping: Any
        idx_mapping_np: Any
        expanded_local_pos: Any
        input_ids: Any
        pos: Any
        seq_lens_upper_bound_np: Any

    class LogitsProcessor(ABC):
        def __init__(self, vllm_config: Any, req_states: Any) -> None:
            return None

        @classmethod
        def validate_params(cls, sampling_params: Any) -> None:
            return None

        def add_request(self, req_idx: int, sampling_params: Any) -> bool:
            return True

        def apply_staged_writes(self) -> None:
            return None

        @abstractmethod
        def apply(self, logits: Any, ctx: Any) -> Any: ...

    module.LogitsProcRequestState, module.LogitsContext = LogitsProcRequestState, LogitsContext
    module.LogitsProcessor = LogitsProcessor


@pytest.fixture(params=["fake", "source"])
def plugin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The installed package, imported beside interfaces that are fakes or vLLM's own sources."""
    if request.param == "source" and not SOURCE:
        pytest.skip("LOCKSTEP_VLLM_SOURCE (a folder with vLLM's sources) is not set")
    for name in (V1, V2):
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            part = ".".join(parts[:length])
            monkeypatch.setitem(sys.modules, part, types.ModuleType(part))
    sys.modules["vllm"].SamplingParams = SimpleNamespace  # type: ignore[attr-defined]
    for name, fake in ((V1, fake_v1), (V2, fake_v2)):
        if request.param == "fake":
            fake(sys.modules[name])
        else:
            path = Path(SOURCE, *name.split(".")).with_suffix(".py")
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            monkeypatch.setitem(sys.modules, name, module)
            spec.loader.exec_module(module)
    monkeypatch.syspath_prepend(str(PLUGIN))
    for name in [name for name in sys.modules if name.startswith("lockstep_forced")]:
        monkeypatch.delitem(sys.modules, name)
    yield importlib.import_module("lockstep_forced")
    for name in [name for name in sys.modules if name.startswith("lockstep_forced")]:
        del sys.modules[name]


def asked(tokens: Any = None, **others: Any) -> Any:
    return SimpleNamespace(extra_args=None if tokens is None else {"forced_tokens": tokens}, **others)


def logits(rows: int) -> torch.Tensor:
    return torch.randn(rows, WORDS, generator=torch.Generator().manual_seed(rows))


def chosen(before: torch.Tensor, after: torch.Tensor) -> list[int | None]:
    """The one token left possible in each row; None for a row that is untouched, bit for bit."""
    found: list[int | None] = []
    for old, new in zip(before, after, strict=True):
        left = torch.isfinite(new).nonzero().flatten().tolist()
        if torch.equal(old, new):
            found.append(None)
        else:
            assert len(left) == 1
            found.append(left[0])
    return found


# --- shared ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [[], "12", 3, [1, -1], [1, 2.0], [True], [1, "2"], {"1": 2}])
def test_lists_that_cannot_be_forced_are_refused(plugin: Any, wrong: Any) -> None:
    with pytest.raises(ValueError, match="forced_tokens"):
        plugin.ForcedTokens.validate_params(asked(wrong))


def test_what_would_override_the_forcing_is_refused(plugin: Any) -> None:
    plugin.ForcedTokens.validate_params(asked())
    plugin.ForcedTokens.validate_params(asked([1, 2], structured_outputs=None))
    for other in ("structured_outputs", "thinking_token_budget"):
        plugin.ForcedTokens.validate_params(asked(None, **{other: 1}))
        with pytest.raises(ValueError, match=other):
            plugin.ForcedTokens.validate_params(asked([1], **{other: 1}))


def test_one_class_serves_both_runners(plugin: Any) -> None:
    """Each runner's check of what it loads passes, and each gets a processor of its own interface."""
    assert issubclass(plugin.ForcedTokens, sys.modules[V1].LogitsProcessor)
    assert issubclass(plugin.ForcedTokens, sys.modules[V2].LogitsProcessor)
    assert isinstance(first_runner(plugin), sys.modules[V1].LogitsProcessor)
    assert isinstance(second_runner(plugin)[0], sys.modules[V2].LogitsProcessor)


# --- V1 -------------------------------------------------------------------------------------------------


def first_runner(plugin: Any) -> Any:
    config = SimpleNamespace(model_config=SimpleNamespace(get_vocab_size=lambda: WORDS))
    return plugin.ForcedTokens(config, torch.device("cpu"), False)


def update(size: int, removed: Any = (), added: Any = (), moved: Any = ()) -> Any:
    return sys.modules[V1].BatchUpdate(size, removed, added, moved)


def step(processor: Any, rows: int) -> list[int | None]:
    before = logits(rows)
    return chosen(before, processor.apply(before.clone()))


def test_v1_forces_in_order_and_then_nothing(plugin: Any) -> None:
    processor, output = first_runner(plugin), list[int]()
    processor.update_state(update(2, added=[(0, asked([3, 4]), [], output), (1, asked(), [], [])]))
    seen = []
    for _ in range(4):
        seen.append(step(processor, 2))
        output.append(-1)  # a placeholder, as asynchronous scheduling leaves it
        processor.update_state(None)
    assert seen == [[3, None], [4, None], [None, None], [None, None]]


def test_v1_resumes_where_a_preempted_request_was(plugin: Any) -> None:
    processor = first_runner(plugin)
    processor.update_state(update(1, added=[(0, asked([3, 4, 5]), [], [3, 4])]))
    assert step(processor, 1) == [5]


def test_v1_follows_removals_moves_swaps_and_replacements(plugin: Any) -> None:
    one_way, swap = sys.modules[V1].MoveDirectionality.UNIDIRECTIONAL, sys.modules[V1].MoveDirectionality.SWAP
    processor = first_runner(plugin)
    add = [(i, asked([i + 1]) if i != 2 else asked(), [], []) for i in range(4)]
    processor.update_state(update(4, added=add))
    assert step(processor, 4) == [1, 2, None, 4]
    processor.update_state(update(4, moved=[(0, 3, swap)]))
    assert step(processor, 4) == [4, 2, None, 1]
    processor.update_state(update(4, moved=[(2, 3, swap)]))
    assert step(processor, 4) == [4, 2, 1, None]
    processor.update_state(update(3, moved=[(2, 1, one_way)]))  # onto a row that still has a request
    assert step(processor, 3) == [4, 1, None]
    processor.update_state(update(3, added=[(0, asked(), [], []), (2, asked([9]), [], [])]))
    assert step(processor, 3) == [None, 1, 9]
    processor.update_state(update(0, removed=[2, 1, 0]))
    assert step(processor, 3) == [None, None, None]


def test_v1_forces_where_the_logits_are_not_finite_and_survives_unknown_tokens(plugin: Any) -> None:
    processor = first_runner(plugin)
    processor.update_state(update(2, added=[(0, asked([3]), [], []), (1, asked([WORDS]), [], [])]))
    after = processor.apply(torch.full((2, WORDS), float("nan")))
    assert after[0].argmax() == 3
    assert torch.isfinite(after[0]).sum() == 1
    assert torch.isnan(after[1]).all()
    assert not processor.is_argmax_invariant()


# --- V2 -------------------------------------------------------------------------------------------------


def second_runner(plugin: Any, slots: int = 4) -> tuple[Any, torch.Tensor]:
    prompt_len = torch.zeros(slots, dtype=torch.int32)
    state = sys.modules[V2].LogitsProcRequestState(
        device=torch.device("cpu"),
        max_num_reqs=slots,
        vocab_size=WORDS,
        all_token_ids=None,
        prompt_len=SimpleNamespace(gpu=prompt_len, np=prompt_len.numpy()),
        prefill_len=None,
        total_len=None,
    )
    return plugin.ForcedTokens(SimpleNamespace(), state), prompt_len


def rows_of(*rows: tuple[int, int]) -> Any:
    """A batch's layout from (slot, position of the row's input token)."""
    slots, positions = [slot for slot, _ in rows], [position for _, position in rows]
    order = list(dict.fromkeys(slot for slot in slots if slot >= 0))
    return sys.modules[V2].LogitsContext(
        expanded_idx_mapping=torch.tensor(slots, dtype=torch.int32),
        idx_mapping=torch.tensor(order, dtype=torch.int32),
        idx_mapping_np=np.array(order, dtype=np.int32),
        expanded_local_pos=torch.zeros(len(rows), dtype=torch.int32),
        input_ids=torch.zeros(len(rows), dtype=torch.int32),
        pos=torch.tensor(positions, dtype=torch.int64),
        seq_lens_upper_bound_np=np.array([max(positions) + 1] * len(order)),
    )


def step2(processor: Any, *rows: tuple[int, int]) -> list[int | None]:
    before = logits(len(rows))
    return chosen(before, processor.apply(before.clone(), rows_of(*rows)))


def test_v2_forces_by_position_in_any_order_of_rows(plugin: Any) -> None:
    """Slots 1 and 3, prompts of 5 and 2 tokens; row order changes; nothing in prefill, nothing after
    the end."""
    processor, prompt_len = second_runner(plugin)
    prompt_len[1], prompt_len[3] = 5, 2
    assert processor.add_request(1, asked([3, 4]))
    assert processor.add_request(3, asked([7]))
    assert not processor.add_request(0, asked())
    processor.apply_staged_writes()
    assert step2(processor, (1, 2), (3, 1), (0, 9)) == [None, 7, None]
    assert step2(processor, (3, 2), (1, 4)) == [None, 3]
    assert step2(processor, (1, 5), (3, 3)) == [4, None]
    assert step2(processor, (1, 6)) == [None]


def test_v2_forces_every_row_of_a_request_with_drafts(plugin: Any) -> None:
    """Four rows of slot 2 beside one of slot 0, the list ending in the middle, and a padding row."""
    processor, prompt_len = second_runner(plugin)
    prompt_len[2] = 3
    processor.add_request(2, asked([5, 6, 7]))
    processor.add_request(0, asked())
    processor.apply_staged_writes()
    assert step2(processor, (0, 8), (2, 2), (2, 3), (2, 4), (2, 5), (-1, 0)) == [None, 5, 6, 7, None, None]


def test_v2_slots_are_taken_over_completely(plugin: Any) -> None:
    processor, prompt_len = second_runner(plugin)
    prompt_len[0] = 1
    for tokens, wanted in (
        ([3, 4, 5], [3, 4, 5]),
        ([6], [6, None, None]),
        (None, [None] * 3),
        ([8, 9], [8, 9, None]),
    ):
        processor.add_request(0, asked(tokens))
        processor.apply_staged_writes()
        assert step2(processor, (0, 0), (0, 1), (0, 2)) == wanted


def test_v2_grows_for_long_lists_and_keeps_the_others(plugin: Any) -> None:
    processor, prompt_len = second_runner(plugin)
    long = [i % WORDS for i in range(1000)]
    prompt_len[:] = 1
    processor.add_request(0, asked([11]))
    processor.apply_staged_writes()
    processor.add_request(1, asked(long))
    processor.apply_staged_writes()
    assert processor.table.shape == (4, 1024)
    assert step2(processor, (0, 0), (1, 998), (1, 999), (1, 1000)) == [11, long[998], long[999], None]


def test_v2_unknown_tokens_are_not_forced_and_untouched_batches_are_returned_as_they_are(plugin: Any) -> None:
    processor, _ = second_runner(plugin)
    assert not processor.add_request(0, asked([WORDS]))
    processor.apply_staged_writes()
    before = logits(1)
    assert processor.apply(before, rows_of((0, 0))) is before
    assert step2(processor, (0, 0)) == [None]

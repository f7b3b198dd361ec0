"""Each measure of speed in its own column, from rows with known times."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from evals.engines.api import Request, Response
from evals.speed import Speed, as_dict, as_table, busy, speed_of
from evals.store.row import Label, Row, row_of


def timed(
    i: int, tokens: int, first: float | None, total: float | None, end: float = 0.0, **more: Any
) -> Row:
    key, forced = f"toy/{i}/0", more.pop("forced", ())
    answer = Response(
        key, 1, token_ids=[1] * tokens, first_token=first, total=total, prompt_tokens=100, **more
    )
    label = Label("run", "reference", "toy", str(i))
    return row_of(label, Request(key, 1, forced=forced), answer, time=end)


def test_prefill_is_not_in_decode_throughput() -> None:
    """101 tokens: the first after 9 s, the other 100 in 1 s."""
    found = speed_of([timed(0, 101, 9.0, 10.0, end=10.0)])
    assert found.decode_median == pytest.approx(100.0)
    assert found.first_token_median == 9.0
    assert found.latency_median == 10.0
    assert found.output == pytest.approx(10.1)
    assert (found.input_tokens, found.output_tokens) == (100, 101)


def test_output_throughput_counts_overlap_once_and_pauses_not_at_all() -> None:
    rows = [
        timed(0, 50, 1.0, 10.0, end=10.0),
        timed(1, 50, 1.0, 10.0, end=15.0),
        timed(2, 50, 1.0, 5.0, end=1000.0),
    ]
    assert speed_of(rows).output == pytest.approx(150 / 20)
    assert busy([(0, 2), (1, 3), (5, 6), (5.5, 5.6)]) == 4
    assert busy([]) == 0


def test_quantiles_over_requests() -> None:
    rows = [timed(i, 11, 0.5, 0.5 + (i + 1) / 10, end=i) for i in range(101)]
    found = speed_of(rows)
    assert found.latency_median == pytest.approx(0.5 + 5.1)
    assert found.latency_p95 == pytest.approx(0.5 + 9.6)
    assert found.decode_median == pytest.approx(10 / 5.1)
    assert found.decode_p5 == pytest.approx(10 / 9.6)


def test_what_was_not_measured_stays_blank() -> None:
    found = speed_of([timed(0, 10, None, None), timed(1, 10, 0.1, 0.5, end=1.0)])
    assert found.output is None, "one request without a time would make it wrong"
    assert found.decode_median == pytest.approx(9 / 0.4)
    blank = speed_of([timed(0, 1, None, None)])
    assert {blank.decode_median, blank.first_token_median, blank.latency_p95, blank.acceptance_length} == {
        None
    }
    assert speed_of([timed(0, 1, 0.2, 0.2)]).decode_median is None, "one token is prefill"


def test_failed_and_forced_requests_do_not_count() -> None:
    rows = [
        timed(0, 11, 1.0, 2.0, end=2.0),
        timed(1, 0, None, 900.0, end=900.0, failure="timeout"),
        timed(2, 11, 1.0, 100.0, end=900.0, forced=(1,) * 11),
    ]
    found = speed_of(rows)
    assert (found.replies, found.latency_p95) == (1, 2.0)


def test_circumstances_stand_beside_the_figures() -> None:
    facts = {
        "max_num_seqs": 8, "speculative_method": "dspark", "speculative_tokens": 7,
        "speculative_acceptance": "synthetic",
    }  # fmt: skip
    found = speed_of([timed(0, 9, 1.0, 2.0, accepted=[3, 4, 1])], facts, concurrency=4)
    assert (found.batch, found.concurrency, found.speculation, found.draft_tokens) == (8, 4, "dspark", 7)
    assert found.acceptance_length == pytest.approx(1 + 8 / 3)
    assert found.synthetic_acceptance is True
    assert speed_of([timed(0, 9, 1.0, 2.0)]).synthetic_acceptance is None


def test_rows_of_two_arms_are_not_mixed() -> None:
    other = row_of(Label("run", "candidate", "toy", "1"), Request("k", 1), Response("k", 1, token_ids=[1]))
    with pytest.raises(ValueError, match="several arms"):
        speed_of([timed(0, 1, 1.0, 1.0), other])
    assert speed_of([]).replies == 0


def _shown(*speeds: Speed) -> str:
    buffer = io.StringIO()
    Console(width=200, file=buffer, color_system=None).print(as_table(speeds))
    return buffer.getvalue()


def test_table_and_document() -> None:
    facts = {"speculative_method": "dspark", "speculative_acceptance": "standard"}
    one = speed_of([timed(0, 101, 9.0, 10.0, end=10.0)], facts)
    two = speed_of([timed(0, 101, None, 10.0, end=10.0)])
    text = _shown(one, two)
    assert "decode tok/s" in text
    assert "first token s" in text
    assert "drafts" not in text, "a column that no arm knows"
    first, second = text.splitlines()[1:3]
    assert first.split()[:9] == ["reference", "toy", "1", "100", "101", "100", "100", "9", "9"]
    assert first.rstrip().endswith("no")
    assert second.rstrip() != first.rstrip()
    assert json.loads(json.dumps(as_dict([one, two])))[1]["decode_median"] is None

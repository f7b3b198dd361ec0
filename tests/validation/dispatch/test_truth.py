"""The truth table of deployments and steps: consistent in itself, and wrong implementations are told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernels_under_test.executor import plan as ours
from validation.cli import main
from validation.dispatch.truth import compare
from validation.subjects.kimi_k3.deployment import ACCEPTED, REFUSED, REQUIREMENTS, Deployment, refusal
from validation.subjects.kimi_k3.steps import TRUTH, StepKind, decide, graph_for, plain, prepared, verified


def test_rules_give_the_table() -> None:
    for row in TRUTH:
        assert decide(row.step) == (row.tokens, row.why), row.step.name
    assert len({row.step.name for row in TRUTH}) == len(TRUTH)


def test_every_requirement_is_broken_by_one_deployment_alone() -> None:
    broken = [[r.asks for r in REQUIREMENTS if not r.met(d)] for d in REFUSED]
    assert broken == [[r.asks] for r in REQUIREMENTS]
    assert {r.row for r in REQUIREMENTS} == set(range(1, 12))
    assert all(refusal(d) is None for d in ACCEPTED)


def test_the_first_requirement_gives_the_reason() -> None:
    both = Deployment(speculation="dspark", drafts=8, replay_ssm=True)
    assert refusal(both) == "needs no replayed recurrent state"  # row 10 is asked before the number of drafts
    assert refusal(replace(both, adaptive=True)) == "needs no adaptive verification"


def test_the_executor_of_this_suite_agrees() -> None:
    assert [a for a in compare(ours.plan, ours.refuses) if not a.agrees] == []


def _verify_by_count(s: StepKind) -> int | None:
    return s.tokens if s.rows <= 64 and s.kda.spec else ours.plan(s)


def _prompts_overlooked(s: StepKind) -> int | None:
    return ours.plan(replace(s, kda=replace(s.kda, prefills=0)))


@pytest.mark.parametrize(
    ("name", "wrong", "rows"),
    [
        ("F53 plain kernels for verify rows", lambda s: 1 if ours.plan(s) else None, "verify"),
        ("F54 never executed", lambda s: None, "plain decode of 1"),
        ("F55 mixed rows taken for verify", _verify_by_count, "partial"),
        ("F55 a prompt taken for decode", _prompts_overlooked, "prompt in a KDA layer alone"),
        ("F44 decided outside a capture", lambda s: ours.plan(replace(s, capturing=True)), "eager"),
    ],
)
def test_wrong_plans_are_told(name: str, wrong, rows: str) -> None:  # type: ignore[no-untyped-def]
    differ = [a.what for a in compare(wrong, ours.refuses) if not a.agrees]
    assert any(rows in what for what in differ), (name, differ)


def test_a_missing_refusal_and_another_reason_are_told() -> None:
    def lax(d: Deployment) -> str | None:
        return None if d.drafts > 7 else "needs a licence" if d.lora else ours.refuses(d)

    differ = [a for a in compare(ours.plan, lax) if not a.agrees]
    assert [(a.what, a.given) for a in differ] == [
        ("lora=True", "refused: needs a licence"),
        ("speculation=dspark, drafts=8", "accepted"),
    ]


def test_graphs_of_replays() -> None:
    sizes = prepared((12, 24), 4)
    assert graph_for(1, 1, prepared((), 1), False) == 1
    assert graph_for(9, 1, prepared((), 1), False) == 16
    assert graph_for(3, 4, sizes, False) == 12
    assert graph_for(5, 4, sizes, False) == 24
    assert graph_for(17, 4, sizes, False) is None
    assert graph_for(2, 1, sizes, True) is None


def test_decisions_look_at_counts_alone() -> None:
    """Slots and lengths are no part of a step's description, so ranks cannot decide apart."""
    fields = set(vars(plain("x", 4)))
    assert not fields & {"slots", "lengths", "accepted", "rank"}
    assert decide(verified("a", 2, 4)) == decide(verified("b", 2, 4))


PLUGIN = """
from kernels_under_test.executor import plan as ours
refuses = ours.refuses
def plan(step):
    return None if step.rows == 7 else ours.plan(step)
"""


def test_command_with_another_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dispatch"]) == 0
    assert "71 of 71 rows agree: PASS" in capsys.readouterr().out
    (tmp_path / "other.py").write_text(PLUGIN)
    assert main(["dispatch", "--plan", str(tmp_path / "other.py"), "--json", str(tmp_path / "d.json")]) == 1
    out = capsys.readouterr().out
    assert "WRONG plain decode of 7" in out
    assert "it says fallback" in out
    assert (tmp_path / "d.json").exists()
    (tmp_path / "half.py").write_text("def plan(step): return None\n")
    assert main(["dispatch", "--plan", str(tmp_path / "half.py")]) == 3
    assert main(["dispatch", "--plan", str(tmp_path / "absent.py")]) == 3
    assert "has no function refuses" in capsys.readouterr().err

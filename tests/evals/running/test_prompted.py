"""Walks of everyday prompts: only the reference answers them, and the guard does not take that for a
difference."""

from __future__ import annotations

from pathlib import Path

from small_run import arms_file, document, fresh, rows

from evals.forced.walk import PROMPTS, TASK


def test_everyday_prompts_are_walked_by_both_arms_and_answered_by_one(
    tiny_model: Path, tmp_path: Path
) -> None:
    arms = arms_file(tmp_path, tiny_model)
    arms.write_text(arms.read_text().replace("length = 10\n", 'length = 10\nsource = "prompts"\n'))
    _, folder = fresh(arms, tmp_path / "reports", "--limit", 1, "--k", 1)
    found = rows(folder)
    assert {row.arm for row in found if row.task == PROMPTS} == {"reference"}
    walked = {
        arm: {r.key for r in found if r.task == TASK and r.arm == arm} for arm in ("reference", "candidate")
    }
    assert walked["reference"] == walked["candidate"]
    assert all(key.startswith(f"{TASK}/{PROMPTS}/") for key in walked["reference"])
    notes = document(folder).notes
    assert not [note for note in notes if note.startswith("confounded")]
    assert not [row for row in document(folder).details["speed"] if row["task"] == PROMPTS]

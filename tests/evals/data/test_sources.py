"""Where questions come from: local files by SHA-256, the hub, and every fault ending in one line."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evals.data import bins, rows, sources
from evals.data.pins import PINS
from evals.data.sources import documents
from validation.errors import UserError

QUESTION = {
    "Question": "Which?",
    "Correct Answer": "right ",
    "Incorrect Answer 1": "one",
    "Incorrect Answer 2": "two",
    "Incorrect Answer 3": "three",
}


def put(directory: Path, name: str, lines: list[dict[str, Any]], sha: str = "") -> Path:
    """A JSONL file and a manifest that lists it."""
    path = directory / name
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    sha = sha or hashlib.sha256(path.read_bytes()).hexdigest()
    (directory / "manifest.json").write_text(json.dumps({"files": {name: sha}}), "utf-8")
    return path


def test_local_jsonl_is_read(tmp_path: Path) -> None:
    put(tmp_path, "aime25-mine.jsonl", [{"problem": "1+1?", "answer": "2"}, {"problem": "x?", "answer": 70}])
    found, dropped = documents("aime25", str(tmp_path))
    assert ([d["answer"] for d in found], dropped) == ([2, 70], 0)


def test_original_csv_is_read_by_its_pinned_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "gpqa_diamond.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, QUESTION)
        writer.writeheader()
        writer.writerow(QUESTION)
    sha = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(sources.PINS, "gpqa_diamond", replace(PINS["gpqa_diamond"], files={path.name: sha}))
    (document,), _ = documents("gpqa_diamond", str(tmp_path))
    assert document[document["answer"]] == "right"
    assert sorted(document[letter] for letter in "ABCD") == ["one", "right", "three", "two"]


def test_original_parquet_is_read_and_rows_outside_of_all_bins_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def row(words: int) -> dict[str, Any]:
        prompt = json.dumps([{"role": "user", "content": "word " * words}])
        return {"prompt": prompt, "answer": "P123 x", "random_string_to_prepend": "P123", "n_needles": 2}

    shas = {}
    for i, words in enumerate((5000, 10)):
        path = tmp_path / f"2needle_{i}.parquet"
        pq.write_table(pa.Table.from_pylist([row(words)]), path)
        shas[f"2needle/{path.name}"] = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(sources.PINS, "mrcr_2needle", replace(PINS["mrcr_2needle"], files=shas))
    found, dropped = documents("mrcr_2needle", str(tmp_path))
    assert ([d["bin"] for d in found], dropped) == ([0], 1)


@pytest.mark.parametrize(
    ("name", "lines", "sha", "says"),
    [
        ("aime25.jsonl", [{"problem": "x", "answer": "1"}], "0" * 64, "expected 0000"),
        ("aime25.jsonl", [{"problem": "x", "answer": "1"}], "short", "manifest.json"),
        ("aime25.jsonl", [], "", "no row is left"),
        ("aime25.jsonl", [{"question": "x", "answer": "1"}], "", "has no problem"),
        ("aime25.jsonl", [{"problem": "x", "answer": "1.5"}], "", "integer from 0 to 999"),
        ("aime25.jsonl", [{"problem": "x", "answer": "1"}] * 2, "", "twice"),
        ("other.jsonl", [{"problem": "x", "answer": "1"}], "", "holds neither"),
        ("aime25.txt", [{"problem": "x", "answer": "1"}], "", "only .jsonl"),
    ],
)
def test_bad_data_ends_in_one_line(tmp_path: Path, name: str, lines: list[Any], sha: str, says: str) -> None:
    put(tmp_path, name, lines, sha)
    with pytest.raises(UserError, match=says) as error:
        documents("aime25", str(tmp_path))
    assert "\n" not in str(error.value)


def test_changed_original_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text('{"problem": "x", "answer": "1"}\n')
    with pytest.raises(UserError, match="b4e273c02d3e7fe1"):
        documents("aime25", str(tmp_path))


def test_half_of_the_files_is_not_the_data(tmp_path: Path) -> None:
    (tmp_path / "2needle_0.parquet").write_bytes(b"")
    with pytest.raises(UserError, match="1 of 2 files"):
        documents("mrcr_2needle", str(tmp_path))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("GatedRepoError", "accept its terms"),
        ("RepositoryNotFoundError", "gated: accept"),
        ("OSError", "cannot reach"),
    ],
)
def test_hub_faults_name_the_remedy(monkeypatch: pytest.MonkeyPatch, name: str, says: str) -> None:
    import huggingface_hub
    from huggingface_hub import errors

    kind = getattr(errors, name, OSError)

    def fail(*_: object, **__: object) -> None:
        error = kind.__new__(kind)
        error.args = ("no",)
        raise error

    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(UserError, match=says) as error:
        documents("gpqa_diamond", "hub")
    assert "\n" not in str(error.value)


def test_download_asks_for_the_pinned_revision_and_checks_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked: dict[str, Any] = {}

    def download(repository: str, name: str, **options: Any) -> str:
        asked.update(options, repository=repository)
        (tmp_path / "x.jsonl").write_text("{}")
        return str(tmp_path / "x.jsonl")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(UserError, match="SHA-256"):
        documents("aime25", "hub")
    assert asked == {
        "repository": "math-ai/aime25",
        "revision": "563bb8404243c5f09de6ec262f2db674fe5bce9b",
        "repo_type": "dataset",
    }


def test_every_pin_is_whole() -> None:
    for pin in PINS.values():
        assert len(pin.revision) == 40
        assert all(len(sha) == 64 and int(sha, 16) for sha in pin.files.values())


def test_options_are_permuted_by_the_question_alone() -> None:
    """The same letters in every run; over questions every letter is gold about equally often (F59)."""
    letters = Counter(rows.gpqa({**QUESTION, "Question": f"Which {i}?"})["answer"] for i in range(2000))
    assert rows.gpqa(QUESTION) == rows.gpqa(dict(QUESTION))
    assert all(430 < letters[letter] < 570 for letter in "ABCD")  # 500 expected, 3.6 standard deviations


def test_options_that_read_alike_are_kept() -> None:
    """Three questions of the public set have two equal options."""
    found = rows.gpqa({**QUESTION, "Incorrect Answer 1": "right"})
    assert found[found["answer"]] == "right"


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (4095, None),
        (4096, 0),
        (8192, 0),
        (8193, 1),
        (16384, 1),
        (16385, 2),
        (1 << 20, 7),
        ((1 << 20) + 1, None),
    ],
)
def test_bin_edges(tokens: int, expected: int | None) -> None:
    assert bins.bin_of(tokens) == expected


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("hello world", 2),
        ("tiktoken is great!", 6),
        ("antidisestablishmentarianism", 6),
        ("2 + 2 = 4", 7),
        ("Soft TAPIRS don't\r\n\tsleep \u8a69 \U0001f600\n\n", 9),
        ("", 0),
    ],
)
def test_token_counts_are_those_of_tiktoken(text: str, count: int) -> None:
    """Counted with tiktoken 0.14.0, which is no dependency, on the table whose hash the next test checks."""
    assert bins.counter()(text) == count


def test_token_table_is_the_published_one() -> None:
    """The SHA-256 that tiktoken's source pins for o200k_base."""
    import bpe_openai

    path = Path(bpe_openai.__file__).parent / "data" / "o200k_base.tiktoken.gz"
    sha = hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest()
    assert sha == "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"


def test_tokens_are_those_of_all_messages_and_the_answer() -> None:
    messages = [{"content": "hello world"}, {"content": "2 + 2 = 4"}]
    assert bins.tokens_of(messages, "hello world") == 2 + 7 + 2

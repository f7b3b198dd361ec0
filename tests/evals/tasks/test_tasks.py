"""The YAML files under lm-eval itself: data, prompts, repeats, results, with a model that answers from a
table."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evals.data.sources import documents
from evals.graders.outcome import Grade
from evals.graders.reply import Reply
from evals.tasks import prompts
from evals.tasks.loading import NAMES, load_tasks
from evals.tasks.results import mrcr, summary
from validation.errors import UserError

lm_eval = pytest.importorskip("lm_eval")


@pytest.fixture(autouse=True)
def no_inventory(monkeypatch: pytest.MonkeyPatch) -> None:
    """lm-eval lists the machine's packages and hardware with every result, for three seconds."""
    import lm_eval.evaluator

    monkeypatch.setattr(lm_eval.evaluator, "add_env_info", lambda results: None)


def model(answer: Callable[[dict[str, Any], int], str]) -> Any:
    """An lm-eval model whose reply is ``answer(document, repeat)``; keeps what it was asked."""
    from lm_eval.api.model import LM

    class Table(LM):
        tokenizer_name = "table"

        def __init__(self) -> None:
            super().__init__()
            self.asked: list[tuple[str, dict[str, Any]]] = []

        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
            seen: dict[int, int] = {}
            replies = []
            for request in requests:
                repeat = seen[request.doc_id] = seen.get(request.doc_id, -1) + 1
                self.asked.append(request.args)
                replies.append(answer(request.doc, repeat))
            return replies

        def loglikelihood(self, requests: list[Any]) -> Any:
            raise NotImplementedError

        loglikelihood_rolling = loglikelihood

        def apply_chat_template(
            self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
        ) -> str:
            return json.dumps(chat_history)

        def chat_template(self, chat_template: bool | str = False) -> str:
            return ""

    return Table()


def evaluate(tasks: list[Any], lm: Any, **options: Any) -> Any:
    from lm_eval.tasks import TaskManager

    # Without it lm-eval indexes the 14,683 tasks that it ships, for seconds in every call.
    manager = TaskManager(include_path=str(Path(prompts.__file__).parent), include_defaults=False)
    return lm_eval.simple_evaluate(
        task_manager=manager,
        model=lm,
        tasks=tasks,
        log_samples=True,
        apply_chat_template=True,
        bootstrap_iters=1,
        **options,
    )


def gold(doc: dict[str, Any]) -> str:
    if "problem" in doc:
        return f"\\boxed{{{doc['answer']}}}"
    return doc["answer"] if "prefix" in doc else f"Answer: {doc['answer']}"


@pytest.mark.parametrize("name", NAMES)
def test_gold_answers_score_one_through_the_yaml(name: str) -> None:
    found = evaluate(load_tasks([name], k=2, data="mirrored", items=3), model(lambda doc, _: gold(doc)))
    result = found["results"][f"mirrored_{name}"]
    assert result["avg_at_k,all"] == 1
    assert result["unparsed,all"] == result["failed,all"] == result["truncated,all"] == 0
    assert [len(s["grades"]) for s in found["samples"][f"mirrored_{name}"]] == [2, 2, 2]


@pytest.mark.parametrize("name", ["aime25", "gpqa_diamond", "mrcr_2needle"])
def test_grades_keep_the_order_of_the_repeats(name: str) -> None:
    """Pairing by (question, repeat) needs it; the first question is right first, the others right last."""
    first = documents(name, "mirrored", 3)[0][0]["id"]
    lm = model(lambda doc, repeat: gold(doc) if (repeat == 0) == (doc["id"] == first) else "no idea")
    samples = evaluate(load_tasks([name], k=2, data="mirrored", items=3), lm)["samples"][f"mirrored_{name}"]
    outcomes = {s["doc"]["id"]: [g["outcome"] for g in s["grades"]] for s in samples}
    assert outcomes.pop(first) == ["right", "unparsed"]
    assert list(outcomes.values()) == [["unparsed", "right"]] * 2


def test_all_k_replies_count_and_failures_are_no_wrong_answers() -> None:
    def answer(doc: dict[str, Any], repeat: int) -> str:
        by_repeat = {
            1: "\\boxed{999}",
            2: Reply("\\boxed{1}", finish="length"),
            3: Reply("", failure="server"),
        }
        return by_repeat.get(repeat, gold(doc))

    found = evaluate(load_tasks(["aime25"], k=4, data="mirrored", items=3), model(answer))
    result = found["results"]["mirrored_aime25"]
    assert result["avg_at_k,all"] == pytest.approx(1 / 2)
    assert result["avg_at_k_truncated_0,all"] == pytest.approx(1 / 3)
    assert result["failed,all"] == result["truncated,all"] == pytest.approx(1 / 4)
    for sample in found["samples"]["mirrored_aime25"]:
        assert [g["outcome"] for g in sample["grades"]] == ["right", "wrong", "truncated", "server"]


def test_question_without_a_scored_reply_is_left_out() -> None:
    first = documents("aime25", "mirrored", 3)[0][0]["id"]
    lm = model(lambda doc, _: Reply("", failure="timeout") if doc["id"] == first else gold(doc))
    result = evaluate(load_tasks(["aime25"], k=1, data="mirrored", items=3), lm)["results"]["mirrored_aime25"]
    assert result["avg_at_k,all"] == 1
    assert result["failed,all"] == pytest.approx(1 / 3)


def test_standard_error_is_over_questions() -> None:
    """Equal repeats must not shrink it: two of four questions right, three repeats each."""
    right = {doc["id"] for doc in documents("aime25", "mirrored", 4)[0][:2]}
    lm = model(lambda doc, _: gold(doc) if doc["id"] in right else "\\boxed{999}")
    result = evaluate(load_tasks(["aime25"], k=3, data="mirrored", items=4), lm)["results"]["mirrored_aime25"]
    assert result["avg_at_k_stderr,all"] == pytest.approx(math.sqrt(1 / 3) / 2)


@pytest.mark.parametrize(("name", "k"), [("aime25", 32), ("gpqa_diamond", 8), ("mrcr_8needle", 1)])
def test_recommended_sampling_is_in_the_yaml(name: str, k: int) -> None:
    from lm_eval.tasks._yaml_loader import load_yaml

    path = next(Path(prompts.__file__).parent.glob(f"*/{name}.yaml"))
    config = load_yaml(path, resolve_func=False)
    assert config["repeats"] == config["filter_list"][0]["filter"][0]["k"] == k
    options = config["generation_kwargs"]
    assert (options["temperature"], options["top_p"], options["until"]) == (1.0, 0.95, [])
    assert options["max_gen_toks"] >= 98304


def test_limit_of_a_reply_and_repeats_reach_the_model() -> None:
    lm = model(lambda doc, _: gold(doc))
    evaluate(load_tasks(["gpqa_diamond"], k=3, data="mirrored", items=2, max_tokens=17), lm)
    assert len(lm.asked) == 6
    assert {options["max_gen_toks"] for _, options in lm.asked} == {17}


def test_earlier_turns_reach_the_model_as_messages() -> None:
    lm = model(lambda doc, _: gold(doc))
    evaluate(load_tasks(["mrcr_2needle"], k=1, data="mirrored", items=1), lm)
    messages = json.loads(lm.asked[0][0])
    assert [m["role"] for m in messages] == ["user", "assistant"] * (len(messages) // 2) + ["user"]
    assert messages[-1]["content"].startswith("Prepend ")


def test_prompts_are_the_frozen_ones() -> None:
    assert prompts.aime({"problem": "P?"}) == (
        "P?\n\n Please reason step by step, and put your final answer within \\boxed{}."
    )
    text = prompts.gpqa({"question": "Q?", "A": "w", "B": "x", "C": "y", "D": "z"})
    assert text.endswith("before answering.\n\nQ?\n\nA) w\nB) x\nC) y\nD) z")
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "3616475e765ca84d"


def test_worked_examples_of_lm_eval_are_refused() -> None:
    task = load_tasks(["aime25"], k=1, data="mirrored", items=1)[0]
    with pytest.raises(ValueError, match="no few-shot"):
        task.fewshot_context(task.test_docs()[0], 1)


def test_mrcr_score_also_counts_in_its_bin() -> None:
    doc = {"answer": "PREFIX7890x", "prefix": "PREFIX7890", "bin": 2}
    assert mrcr(doc, [["PREFIX7890x"]])["avg_at_k_16k-32k"] == 1
    assert not any(name.endswith("k-32k") for name in mrcr({**doc, "bin": -1}, [["PREFIX7890x"]]))


def test_summary_without_any_scored_reply_has_no_score() -> None:
    assert "avg_at_k" not in summary([Grade(math.nan, "timeout")])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"names": ["aime24"]}, "no task"),
        ({"names": ["aime25"], "k": 0}, "at least 1"),
        ({"names": ["aime25"], "data": "mirrored", "items": 0}, "at least 1"),
        ({"names": ["aime25"], "data": "/nowhere"}, "does not exist"),
    ],
)
def test_bad_requests_end_in_one_line(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as error:
        load_tasks(**options)
    assert "\n" not in str(error.value)

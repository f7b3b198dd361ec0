"""The lm-eval task class: a question with the messages that come before it.

lm-eval builds one user message from a document; MRCR asks with a whole conversation. This class renders
``turns`` and the question as messages through the model's chat template. Models that take plain text get the
text of the messages, one after another.

What this catches: turns folded into one user message, another system message in one path (F59). What it
cannot catch: a model run without ``--apply_chat_template``: it gets plain text, and MRCR then says little.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from lm_eval.api.task import ConfigurableTask
from lm_eval.filters import build_filter_ensemble


class ConversationTask(ConfigurableTask):
    """``ConfigurableTask`` whose documents may carry ``turns``, the JSON of earlier messages."""

    def __init__(self, config: dict[str, Any]) -> None:
        # The YAML key that chose this class is no field of lm-eval's configuration.
        super().__init__(config={key: value for key, value in config.items() if key != "class"})

    def set_repeats(self, k: int) -> None:
        """Ask every question ``k`` times and hand all ``k`` replies to process_results."""
        self.set_config("repeats", k)
        self._filters = [build_filter_ensemble("all", [("take_first_k", {"k": k})])]

    def fewshot_context(
        self,
        doc: dict[str, Any],
        num_fewshot: int,
        system_instruction: str | None = None,
        apply_chat_template: bool = False,
        fewshot_as_multiturn: bool = False,
        chat_template: Callable[..., str] | None = None,
        gen_prefix: str | None = None,
    ) -> str:
        """Prompt of ``doc``. Worked examples of lm-eval are refused: they could contain the question
        itself."""
        if num_fewshot:
            raise ValueError(f"{self.config.task} takes no few-shot examples; remove --num_fewshot")
        system = [{"role": "system", "content": system_instruction}] if system_instruction else []
        messages = [*system, *json.loads(doc["turns"]), {"role": "user", "content": self.doc_to_text(doc)}]
        if apply_chat_template and chat_template:
            return chat_template(messages, add_generation_prompt=True)
        return "\n\n".join(message["content"] for message in messages)

"""lm-eval's model interface over an engine and a sample store.

lm-eval puts the same instance K times into its list for K repeats; here each becomes a request with its own
seed, the same seed in every arm. What the store has already is not asked again. Every reply goes to the
graders as a ``Reply``, which carries why it ended, so that a failure is never graded as an answer.

What this catches: two questions with one name. What it cannot catch: a task whose prompt depends on the arm;
the comparability guard sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lm_eval.api.model import LM

from evals.engines.api import Engine, Request, Response, Sampling
from evals.engines.hashing import seed_of, text_hash
from evals.graders.reply import Reply
from evals.store.row import Label, row_of

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from evals.store.store import Store


class Chat(str):
    """Messages on their way through lm-eval, which passes prompts as text; the engine applies the
    template."""

    messages: tuple[Mapping[str, str], ...]


@dataclass(frozen=True)
class Asked:
    """A request and where its response belongs."""

    request: Request
    label: Label


class LockstepLM(LM):
    """One arm. ``replies``: key -> reply, from the store and from this run; ``asked``: everything lm-eval
    wanted."""

    tokenizer_name = "engine"

    def __init__(
        self,
        engine: Engine,
        store: Store,
        arm: str,
        sampling: Mapping[str, Mapping[str, Any]],
        known: Mapping[str, Reply],
        seed: int = 0,
        advance: Callable[[Request, Response], None] = lambda *_: None,
        begin: Callable[[int], None] = lambda _: None,
    ) -> None:
        super().__init__()
        self.engine, self.store, self.arm, self.sampling, self.seed = engine, store, arm, sampling, seed
        self.replies: dict[str, Reply] = dict(known)
        self.asked: list[Asked] = []
        self.advance, self.begin = advance, begin

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> Chat:
        """Keep the messages; the text is only for lm-eval's own records."""
        chat = Chat("\n\n".join(message["content"] for message in chat_history))
        chat.messages = tuple(chat_history)
        return chat

    def chat_template(self, chat_template: bool | str = False) -> str:
        return "the engine's"

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Replies in the order of ``requests``. Raises EngineLost after having stored what came."""
        asked = self._asked(requests)
        self.asked += asked
        open_ones = [item for item in asked if item.request.key not in self.replies]
        labels = {item.request.key: item.label for item in open_ones}

        def done(request: Request, response: Response) -> None:
            self.store.add(row_of(labels[request.key], request, response))
            self.replies[request.key] = Reply.of(response)  # type: ignore[arg-type]
            self.advance(request, response)

        self.begin(len(open_ones))
        self.engine.run([item.request for item in open_ones], done)
        return [self.replies[item.request.key] for item in asked]

    def loglikelihood(self, requests: list[Instance]) -> Any:
        raise NotImplementedError(
            "the tasks here are graded on replies; forced comparisons have their own path"
        )

    loglikelihood_rolling = loglikelihood

    def _asked(self, requests: Sequence[Instance]) -> list[Asked]:
        repeats: dict[tuple[str, str], int] = {}
        asked = []
        for instance in requests:
            name, question = str(instance.task_name), question_of(instance.doc)
            task = name.removeprefix("mirrored_")
            repeat = repeats.get((task, question), 0)
            repeats[task, question] = repeat + 1
            key = f"{task}/{question}/{repeat}"
            prompt, options = instance.args
            request = Request(
                key,
                seed_of(task, question, repeat, self.seed),
                sampling_of(options, self.sampling.get(name, {})),
                **_prompt(prompt),
            )
            label = Label("", self.arm, task, question, text_hash(str(prompt).encode()), repeat)
            asked.append(Asked(request, label))
        return asked


def question_of(doc: Mapping[str, Any]) -> str:
    """The name of a question: its ``id`` if it has one, else a hash of its content."""
    if "id" in doc:
        return str(doc["id"])
    return text_hash(repr(sorted(doc.items())).encode())


def sampling_of(options: Mapping[str, Any], override: Mapping[str, Any]) -> Sampling:
    """The task's generation arguments, changed by what the arms file says for this task."""
    merged = {**options, **override}
    sampling = Sampling(
        temperature=float(merged.pop("temperature", 1.0)),
        top_p=float(merged.pop("top_p", 1.0)),
        max_tokens=int(merged.pop("max_tokens", merged.pop("max_gen_toks", 1024))),
        stop=tuple(merged.pop("until", ()) or ()),
    )
    for name in ("do_sample", "max_gen_toks", "max_tokens", "stop"):
        merged.pop(name, None)
    return replace(sampling, extra=merged)


def _prompt(prompt: Any) -> dict[str, Any]:
    if isinstance(prompt, Chat):
        return {"messages": prompt.messages}
    return {"prompt": str(prompt)}

"""An engine without a server: a transformers model whose decode step is eager or compiled by TorchInductor.

Prefill is the same eager code in both backends, as it is stock in both arms of a serving engine; what differs
is the decode step, built for a fixed number of rows and a fixed cache length. Rows are refilled as they end.

Replicates of a request begin at different slots and positions: the same computation in exact arithmetic, with
other roundings (see ``evals.engines.prefill``). That is the noise a difference between backends has to be
compared with.

What this catches: a decode step that computes something else than the other backend's. What it cannot catch:
faults of a serving engine (scheduling, paged caches, speculation): those need the engine itself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.engines.api import Done, Request, Response
from evals.engines.hashing import hash_ids
from evals.engines.identity import in_process_facts
from evals.engines.in_process_options import BACKENDS, DTYPES, Options
from evals.engines.prefill import SHIFTS, TOGETHER, Prefill, Waiting
from validation.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BACKENDS", "SHIFTS", "InProcessEngine", "Options"]


class InProcessEngine:
    """One backend of one model folder (see ``evals.engines.api.Engine``)."""

    def __init__(self, folder: Path, options: Options | None = None) -> None:
        options = options or Options()
        if options.backend not in BACKENDS:
            raise UserError(f"backend '{options.backend}' is unknown; choose one of {', '.join(BACKENDS)}")
        if options.dtype not in DTYPES:
            raise UserError(f"dtype '{options.dtype}' is unknown; choose one of {', '.join(DTYPES)}")
        self.folder, self.options = folder, options
        self.tokenizer, self.model = load(folder, options)
        self.step = decode_step(self.model, options.backend)
        # On a CPU one at a time: a reply is then the same bit for bit whoever shares the batch.
        self.together = TOGETHER if options.device == "cuda" else 1
        self._caches: dict[int, Any] = {}
        ends = self.model.generation_config.eos_token_id
        self.ends = {*(ends if isinstance(ends, list) else [ends]), self.tokenizer.eos_token_id}

    def facts(self) -> dict[str, Any]:
        """What the comparability guard compares."""
        return in_process_facts(self.folder, self.options, self.model, self.tokenizer)

    def tokenize(self, request: Request) -> list[int]:
        """Token ids of the prompt; the model's template is applied to messages only."""
        if request.prompt_ids:
            return list(request.prompt_ids)
        if request.messages:
            chat = [dict(message) for message in request.messages]
            text = self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
            return list(self.tokenizer(text, add_special_tokens=False).input_ids)
        return list(self.tokenizer(request.prompt).input_ids)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def run(self, requests: Sequence[Request], done: Done) -> None:
        """All requests, those of one cache length together, each group in the order given."""
        import torch

        groups: dict[int, deque[Waiting]] = {length: deque() for length in sorted(self.options.lengths)}
        for request in requests:
            waiting = Waiting(request, tuple(self.tokenize(request)))
            length = next((size for size in groups if size >= waiting.slots), None)
            if length is None:
                done(request, too_long(waiting, max(groups)))
            else:
                groups[length].append(waiting)
        for length, queue in groups.items():
            if queue:
                with torch.inference_mode():
                    Decoder(self, self.cache(length), queue, done).run()

    def cache(self, length: int) -> Any:
        """The cache of one length, made once: a compiled step is built for its shape."""
        from evals.engines.row_cache import RowCache

        if length not in self._caches:
            like = self.model.dtype, self.model.device
            self._caches[length] = RowCache(self.model.config, self.options.rows, length, *like)
        return self._caches[length]

    def close(self) -> None:
        self._caches.clear()


class Decoder:
    """Works through one queue: refill rows that are free, one step for all, repeat."""

    def __init__(self, engine: InProcessEngine, cache: Any, queue: deque[Waiting], done: Done) -> None:
        import torch

        from evals.engines.rows import Ending, Row

        self.engine, self.cache, self.queue, self.done = engine, cache, queue, done
        self.rows: list[Row | None] = [None] * engine.options.rows
        self.first = torch.zeros(engine.options.rows, dtype=torch.long)
        self.prefill = Prefill(engine.model, queue, engine.together)
        self.ending = Ending(engine.ends, engine.detokenize)

    def run(self) -> None:
        while True:
            self.refill()
            if not any(self.rows):
                return
            logits = self.decode()
            going = [i for i, row in enumerate(self.rows) if row]
            self.advance(going, logits if len(going) == len(self.rows) else logits[going])

    def refill(self) -> None:
        """Prefill waiting requests into free rows; a reply of one token leaves its row free at once."""
        from evals.engines.rows import Row

        while self.queue and (free := [i for i, row in enumerate(self.rows) if row is None]):
            began = time.monotonic()
            batch = self.prefill.batch(len(free))
            going = free[: len(batch)]
            logits = self.prefill.fill(self.cache, going, batch)
            for i, waiting in zip(going, batch, strict=True):
                self.first[i] = waiting.shift
                self.rows[i] = Row(waiting.request, waiting.prompt, waiting.shift, began, self.ending)
            self.advance(going, logits)

    def decode(self) -> Tensor:
        """One step for all rows: logits [rows, vocabulary]."""
        import torch

        from evals.engines.row_cache import visible

        model = self.engine.model
        tokens = torch.tensor([[row.last if row else 0] for row in self.rows], device=model.device)
        slots = torch.tensor([row.slot if row else 0 for row in self.rows])
        slots = slots.to(model.device)
        self.cache.slots.copy_(slots)
        length = self.cache.layers[0].keys.shape[2]
        mask = visible(self.first.to(model.device), slots, length, model.dtype)
        for row in filter(None, self.rows):
            row.slot += 1
        return self.engine.step(tokens, slots[:, None], mask, self.cache)

    def advance(self, going: list[int], logits: Tensor) -> None:
        """The next token of the rows ``going``, logits [going, vocabulary]; a row that ends hands over its
        response and is free."""
        from evals.engines.sampling import look

        rows = [row for row in (self.rows[i] for i in going) if row]
        seen = look(logits, [row.draw for row in rows], max(row.top for row in rows))
        for k, (i, row) in enumerate(zip(going, rows, strict=True)):
            if row.take(seen.token[k], seen.logprob[k], seen.top_ids[k], seen.top_logprobs[k]):
                row.finish()
                self.rows[i] = None
                self.done(row.request, row.response)


def too_long(waiting: Waiting, longest: int) -> Response:
    """The failure of a request that fits no cache."""
    request = waiting.request
    note = f"prompt and reply need {waiting.slots} tokens, the longest cache has {longest}"
    size, prompt = len(waiting.prompt), hash_ids(waiting.prompt)
    return Response(
        request.key, request.seed, failure="context", message=note, prompt_tokens=size, prompt_hash=prompt
    )


def load(folder: Path, options: Options) -> tuple[Any, Any]:
    """Tokenizer and model. Raises UserError for a folder that holds no model."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError('device cuda: no CUDA device here; set device = "cpu"')
    if not (folder / "config.json").exists():
        raise UserError(f"{folder} holds no model (no config.json); give the folder of a transformers model")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        # eager: on a CPU the plain products are three times faster than the masked fused kernel.
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, options.dtype), attn_implementation="eager"
        )
    except (OSError, ValueError) as error:
        raise UserError(f"cannot load the model in {folder}: {' '.join(str(error).split())[:200]}") from None
    return tokenizer, model.eval().to(options.device)


def decode_step(model: Any, backend: str) -> Any:
    """One token a row: tokens [rows, 1], positions [rows, 1], additive mask -> logits [rows, vocabulary]."""

    def step(tokens: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
        out = model(
            tokens, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
        return out.logits[:, -1]

    if backend == "eager":
        return step
    import torch

    return torch.compile(step, fullgraph=True, dynamic=False)

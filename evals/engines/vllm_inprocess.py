"""An engine over vLLM's own trace replay, in this process: the preferred way to force tokens where it
applies.

Written against vLLM 0.33's ``LLM`` and ``SamplingParams.trace_decode_token_ids``: the sampler's token is
overwritten by the trace, log-probabilities stay the model's. It needs the V2 model runner and
``enable_trace_replay``; it does not go together with speculative decoding, structured outputs or prompt
log-probabilities, and the OpenAI server has no way to ask for it, hence in process. What this catches:
combinations that vLLM refuses or would cut short, in one line before the run. What it cannot catch:
anything about speculation; the plug-in (evals/forced/vllm_plugin) serves that. Times are those of whole
batches: ``LLM.generate`` does not tell when one request is done.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evals.engines.api import Done, EngineLost, Request, Response
from evals.engines.hashing import hash_ids
from validation.errors import UserError

PLUGIN = "use a server with the plug-in (evals/forced/vllm_plugin) for that"
FORBIDDEN = (
    "structured_outputs",
    "prompt_logprobs",
    "prompt_logprob_token_ids",
    "repetition_detection",
    "thinking_token_budget",
    "bad_words",
)


class TraceReplayEngine:
    """``llm``: a ``vllm.LLM``; ``parameters``: its ``SamplingParams``. ``batch``: requests given to it at
    once.

    Both are handed in, so that tests need no vLLM; ``open_engine`` makes them.
    """

    def __init__(self, llm: Any, parameters: Callable[..., Any], batch: int = 64) -> None:
        self.llm, self.parameters, self.batch = llm, parameters, batch
        self.config = llm.llm_engine.vllm_config

    def run(self, requests: Sequence[Request], done: Done) -> None:
        """In batches; ``done`` for each request when its batch is through. UserError for what cannot
        be replayed."""
        for request in requests:
            self._refuse(request)
        for start in range(0, len(requests), self.batch):
            part = [(request, self.tokenize(request)) for request in requests[start : start + self.batch]]
            fitting = []
            for request, prompt in part:
                if failure := self._too_long(request, prompt):
                    done(request, failure)
                else:
                    fitting.append((request, prompt))
            for (request, prompt), output in zip(fitting, self._generate(fitting), strict=True):
                done(request, self._response(request, prompt, output))

    def _generate(self, part: Sequence[tuple[Request, list[int]]]) -> list[Any]:
        if not part:
            return []
        prompts = [{"prompt_token_ids": prompt} for _, prompt in part]
        parameters = [self._parameters(request) for request, _ in part]
        try:
            return list(self.llm.generate(prompts, sampling_params=parameters, use_tqdm=False))
        except Exception as error:
            if type(error).__name__ in ("EngineDeadError", "EngineGenerateError"):
                raise EngineLost(f"vLLM's engine ended: {' '.join(str(error).split())[:300]}") from None
            raise

    def _parameters(self, request: Request) -> Any:
        sampling = request.sampling
        given: dict[str, Any] = {
            "n": 1,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": len(request.forced) or sampling.max_tokens,
            "seed": request.seed,
            "logprobs": request.top,
            "stop": list(sampling.stop) or None,
        } | {name: value for name, value in sampling.extra.items() if not name.startswith("chat_template")}
        if request.forced:
            given |= {"trace_decode_token_ids": list(request.forced), "stop": None, "ignore_eos": True}
        return self.parameters(**given)

    def _refuse(self, request: Request) -> None:
        if not request.forced:
            return
        if not getattr(self.config.model_config, "enable_trace_replay", False):
            raise UserError(
                "this vLLM was started without enable_trace_replay; add it to the arm's engine arguments"
            )
        if self.config.speculative_config is not None:
            raise UserError(f"vLLM's trace replay does not go with speculative decoding; {PLUGIN}")
        if used := [name for name in FORBIDDEN if request.sampling.extra.get(name)]:
            raise UserError(
                f"vLLM's trace replay does not go with {used[0]}; remove it from the arm's sampling"
            )
        if request.sampling.extra.get("n", 1) != 1:
            raise UserError("vLLM's trace replay needs n = 1; remove n from the arm's sampling")
        size = self.config.model_config.get_vocab_size()
        if outside := [token for token in request.forced if not 0 <= token < size]:
            raise UserError(f"request {request.key}: token {outside[0]} is outside the vocabulary of {size}")

    def _too_long(self, request: Request, prompt: Sequence[int]) -> Response | None:
        """vLLM would cut a trace to what fits, without a word."""
        room = self.config.model_config.max_model_len
        wanted = len(prompt) + (len(request.forced) or request.sampling.max_tokens)
        if wanted <= room:
            return None
        message = f"{wanted} tokens of prompt and reply; the context holds {room}"
        return Response(request.key, request.seed, failure="context", message=message)

    def _response(self, request: Request, prompt: Sequence[int], output: Any) -> Response:
        completion = output.outputs[0]
        response = Response(
            request.key, request.seed, text=completion.text, token_ids=list(completion.token_ids)
        )
        seen = list(output.prompt_token_ids or prompt)
        response.prompt_tokens, response.prompt_hash = len(seen), hash_ids(seen)
        if request.forced and tuple(response.token_ids) != request.forced:
            raise UserError(
                f"request {request.key}: vLLM did not replay the trace; it needs the V2 model runner"
            )
        if completion.finish_reason not in ("stop", "length"):
            response.failure = "server"
            response.message = f"the reply ended with '{completion.finish_reason}'"
            return response
        response.finish = completion.finish_reason
        for token, entries in zip(response.token_ids, completion.logprobs or (), strict=False):
            best = sorted(((t, float(e.logprob)) for t, e in entries.items()), key=lambda p: (-p[1], p[0]))
            response.logprobs.append(float(entries[token].logprob) if token in entries else math.nan)
            response.top_ids.append([t for t, _ in best[: request.top]])
            response.top_logprobs.append([p for _, p in best[: request.top]])
        response.logprobs += [math.nan] * (len(response.token_ids) - len(response.logprobs))
        return response

    def tokenize(self, request: Request) -> list[int]:
        """Token ids of the prompt; the model's template is applied to messages only."""
        if request.prompt_ids:
            return list(request.prompt_ids)
        tokenizer = self.llm.get_tokenizer()
        if request.messages:
            chat = [dict(message) for message in request.messages]
            extra = dict(request.sampling.extra.get("chat_template_kwargs", {}))
            text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False, **extra)
            return list(tokenizer.encode(text, add_special_tokens=False))
        return list(tokenizer.encode(request.prompt))

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return str(self.llm.get_tokenizer().decode(list(token_ids)))

    def facts(self) -> dict[str, Any]:
        """The same names as a server's (see ``evals.engines.server_facts``), read from vLLM's own
        configuration."""
        from importlib.metadata import version

        from evals.engines.server_facts import FIELDS, UNKNOWN

        facts: dict[str, Any] = {"engine": "vllm", "model": str(self.config.model_config.model)}
        for fact, (section, name, _) in FIELDS.items():
            part = getattr(self.config, section, None)
            value = "none" if part is None else getattr(part, name, UNKNOWN)
            facts[fact] = value if isinstance(value, bool | int | float) else str(value)
        facts["additional_config"] = str(self.config.additional_config)
        facts["forcing"] = "trace replay"
        for package in ("vllm", "torch"):
            try:
                facts[f"version_{package}"] = version(package)
            except ImportError:
                facts[f"version_{package}"] = UNKNOWN
        return facts

    def close(self) -> None:
        self.llm = None


def open_engine(model: str, arguments: Mapping[str, Any], batch: int = 64) -> TraceReplayEngine:
    """Load ``model`` with vLLM in this process; ``arguments`` are ``LLM``'s. UserError where it cannot
    replay."""
    arguments = dict(arguments)
    if arguments.get("speculative_config"):
        raise UserError(f"vLLM's trace replay does not go with speculative decoding; {PLUGIN}")
    try:
        from vllm import LLM, SamplingParams
    except ImportError:
        raise UserError("vLLM is not installed here; pip install vllm, or give the arm a server") from None
    if "trace_decode_token_ids" not in getattr(SamplingParams, "__struct_fields__", ()):
        raise UserError("this vLLM has no trace replay; it came with 0.32, " + PLUGIN)
    try:
        llm = LLM(model=model, enable_trace_replay=True, **arguments)
    except (ValueError, RuntimeError) as error:
        line = " ".join(str(error).split())[:300]
        raise UserError(
            f"vLLM does not start with trace replay: {line}; it needs the V2 model runner"
        ) from None
    return TraceReplayEngine(llm, SamplingParams, batch)

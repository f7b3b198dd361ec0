"""One item of a run: walk, judge, plant controls, and say it as a ``CaseResult``.

Catches: see ``walk`` and ``free_running``. Cannot catch: an executor that ends the process (the run then
ends, with what was done).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from validation.report.schema import CaseResult, Finding, Score, ratio
from validation.step import controls, free_running
from validation.step.budget import FREE_SHARE, LOCAL_SHARE
from validation.step.capture import captured
from validation.step.divergence import Divergence
from validation.step.executor import Executor, alternating, fastest, provider, vanilla
from validation.step.items import Item
from validation.step.local import Judged
from validation.step.long_memory import FORGETFUL, FOUND_WITHIN, Memory, long_memory
from validation.step.long_walk import Said, kept_file, long_walk
from validation.step.rollout import Rollout
from validation.step.scenarios import MOST, SCENARIOS
from validation.step.walk import Hooks, Walk, forced
from validation.subjects.kimi_k3.config import Config
from validation.subjects.kimi_k3.weights import Weights, moved, random_weights

DRAWN_ON_CPU = 1024  # widest model whose random weights are drawn there


@dataclass
class Session:
    """What all items of a run share. ``weights``: read from a file, for its configuration alone. ``judged``:
    steps of a long walk that are judged in full, if not as many as its pace says. ``options``: what of the
    command the line that repeats a walk needs."""

    seed: int = 0
    folder: Path | None = None
    weights: tuple[Config, Weights] | None = None
    advance: Callable[[str], None] = lambda words: None
    device: str = "cpu"
    judged: int | None = None
    options: str = ""

    def weights_of(self, config: Config) -> Weights:
        """On the device. Small models are drawn on the CPU, so that all devices have the same."""
        if self.weights and self.weights[0] == config:
            return moved(self.weights[1], self.device)
        if config.hidden > DRAWN_ON_CPU:
            return random_weights(config, self.seed, self.device)
        return moved(random_weights(config, self.seed), self.device)

    def carry_out(self, item: Item, name: str) -> CaseResult:
        """Walk one item with a provider."""
        began = time.perf_counter()
        executor = provider(name)
        if item.turns:
            executor = alternating(executor, vanilla(executor.profile))
        result = CaseResult(item.name, name, item.line(self.seed), "pass")
        if item.scenario == "free_running":
            self._free_running(item, executor, result)
        elif item.scenario == "memory":
            self._memory(item, executor, result)
        elif item.scenario == "long":
            long_walk(self, item, fastest(name, self.device), result)
        else:
            self._judged(item, executor, result)
        if result.findings:
            result.verdict = "fail"
        result.seconds = time.perf_counter() - began
        return result

    def _judged(self, item: Item, executor: Executor, result: CaseResult) -> None:
        """Every operation of every step judged on its own arguments, and the checks between them."""
        config, tally, largest = item.config(), controls.Count(), _Largest()
        planted: set[str] = set()

        def seen(step: int, judged: Judged) -> None:
            largest.add(judged)
            if judged.operation.op not in planted:
                planted.add(judged.operation.op)
                controls.in_operation(tally, judged, LOCAL_SHARE)
            self.advance(f"{item.name} by {executor.name}: step {step}")

        rollout = Rollout(executor.profile, LOCAL_SHARE)
        walk = Walk(
            config,
            self.weights_of(config),
            executor,
            LOCAL_SHARE,
            Hooks(),
            rollout=rollout,
            most=MOST.get(item.scenario, 2),
            seed=self.seed,
            seen=seen,
            device=self.device,
        )
        SCENARIOS[item.scenario](walk)
        controls.between_steps(tally, walk)
        result.scores = largest.scores()
        result.scores += [
            Score("rollout.state", n, v, float(n == "excess")) for n, v in rollout.largest.items()
        ]
        self.counted(result, tally)
        self.report(result, walk.found)
        if walk.blamed and self.folder:
            path = self.folder / f"{result.provider}-{item.name}.safetensors"
            result.note = captured(path, config, walk.blamed, walk.found[0].step, executor)

    def _free_running(self, item: Item, executor: Executor, result: CaseResult) -> None:
        config, tally = item.config(), controls.Count()
        steps = [free_running.Step(ids, [1, 1]) for ids in forced(config, 2, item.steps, seed=self.seed)]
        context = item.steps + config.page
        weights = self.weights_of(config)
        walk = Walk(
            config, weights, executor, None, Hooks(), context=context, seed=self.seed, device=self.device
        )
        candidate = free_running.run(walk, steps)
        self.advance(f"{item.name} by {executor.name}: the ensemble")
        walk.weights = moved(weights, "cpu")
        e = free_running.ensemble(walk, steps, seed=self.seed + 1)
        drift = free_running.judged(candidate, e, FREE_SHARE)
        controls.in_readings(tally, candidate, e, FREE_SHARE)
        result.scores = [Score(what, f"after step {step}", v, limit) for what, step, v, limit in drift.scores]
        if drift.unjudged:
            result.note = f"{len(drift.unjudged)} distances that no spread is known of"
        self.counted(result, tally)
        self.report(result, walk.found + drift.found)

    def _memory(self, item: Item, executor: Executor, result: CaseResult) -> None:
        """One layer's recurrence on its own; as controls what must be found within 64 tokens."""
        config, tally, shown = item.config(), controls.Count(), []
        say = Said(self, f"{item.name} by {executor.name}").of(item.steps)

        def run(one: Executor, tokens: int, said: bool) -> Memory:
            def advance(number: int) -> None:
                if said and number % 256 == 0:
                    say(number)

            return long_memory(
                config, self.weights_of(config), one, tokens, FREE_SHARE, seed=self.seed, device=self.device,
                advance=advance, kept=kept_file(self, item, executor) if said else None,
            )  # fmt: skip

        memory = run(executor, item.steps, True)
        for name, faulty in FORGETFUL.items():
            found = run(faulty(executor), FOUND_WITHIN, False).found
            tally.add(name, bool(found))
            shown.append(f"{name}: {f'found at token {found[0].step + 1}' if found else 'not found'}")
        result.scores = [Score("memory.state", "excess", v, limit) for _, v, limit in memory.scores]
        self.counted(result, tally)
        finds = [
            f"at token {s.tokens:,} a state off by {s.once:.1g} once or {s.drift:.1g} a token"
            for s in memory.sharp
            if s.tokens in (1000, 10_000, 100_000, memory.sharp[-1].tokens)
        ]
        result.note = "; ".join(filter(None, [result.note, f"finds {', '.join(finds)}", *shown]))
        self.report(result, memory.found)
        if memory.judged and self.folder:
            path = self.folder / f"{result.provider}-{item.name}.safetensors"
            result.note += "; " + captured(path, config, memory.judged, memory.found[0].step, executor)

    def counted(self, result: CaseResult, tally: controls.Count) -> None:
        result.controls_planted, result.controls_caught = tally.planted, tally.caught
        if tally.missed:
            result.note = f"unnoticed: {tally.missed}"

    def report(self, result: CaseResult, found: list[Divergence]) -> None:
        replay = f"lockstep step --provider {result.provider} --only {result.op} --seed {self.seed}"
        replay = f"{replay} {self.options}".rstrip()
        result.findings = [_finding(result, divergence, replay) for divergence in found]


def _finding(result: CaseResult, d: Divergence, replay: str) -> Finding:
    where = ", ".join(filter(None, [d.words().rpartition(":")[0], d.where or d.element]))
    return Finding(
        "step",
        d.op,
        result.provider,
        result.case,
        d.statistic,
        d.output,
        d.value,
        d.limit,
        where,
        d.message,
        replay,
    )


class _Largest:
    """The largest score of every output of every operation, over all steps."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], Score] = {}

    def add(self, judged: Judged) -> None:
        for output, statistic in judged.statistics:
            value, limit = statistic.surplus
            name = f"{judged.operation.op}.{output}"
            best = self.found.get((name, statistic.name))
            if best is None or ratio(value, limit) > best.ratio:
                self.found[name, statistic.name] = Score(name, statistic.name, value, limit)

    def scores(self) -> list[Score]:
        return list(self.found.values())

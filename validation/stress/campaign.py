"""A whole stress run: real tensors, broken protocols, quiet and skewed runs, drills; and its verdict.

For each of ``DEPLOYMENTS`` quiet runs come twice, skewed ones by launches of many steps and by one launch a
kernel (graph replay on a GPU). All of the same seed must give the same hash after every step, on every rank:
that is the contract of determinism (``CONTRACT``), tested over as many steps as the runs have in common. The
first hashes must also be those that the host computes: what all ranks have wrong alike is seen there.

What this catches: see the stages. What it cannot catch: what needs more exchanges than there was time for;
the bound says how many there were.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from validation.report.schema import Verdict
from validation.stress import bound, drills, expected
from validation.stress.crew import KERNELS, Crew, Lost
from validation.stress.drills import Drill
from validation.stress.faults import Planted, controls
from validation.stress.job import Answer, Job, Order
from validation.stress.outcome import Outcome, first_difference, verdict
from validation.stress.repeats import Repeat, repeated
from validation.stress.schedule import scheduled
from validation.stress.script import exchanges, exchanges_a_token
from validation.stress.skew import QUIET, of, only
from validation.sync.setting import TP8, TP16

CONTRACT = (
    "same seed, layers and batches give the same bits of state after every step: on every rank, when run "
    "twice, under load, and replayed kernel by kernel; per backend, since another order of sums gives others"
)
# Every kernel sequence of the subject, and both sides of each threshold (kimi_k3_ops.md, section 3.0).
BATCHES = (1, 2, 4, 5, 8, 9, 16, 17, 32, 33, 64)
PILOT = {"cpu": 2, "cuda": 40}  # steps
CHUNK = {"cpu": 4, "cuda": 128}
PATIENCE = {"cpu": 20.0, "cuda": 8.0}  # seconds of a wait in runs that should not fail
IMPATIENCE = {"cpu": 3.0, "cuda": 1.0}  # and in those that should
# Of the time for runs, at most: persistent, and by one launch a kernel.
SKEWED, REPLAYED = {"cpu": 0.7, "cuda": 0.8}, {"cpu": 0.1, "cuda": 0.05}
PLANTED_STEPS = 4096  # on GPUs, until a planted fault counts as not found
# Deployments whose steps have every exchange between them: TP8's dispatch, and TP16's with caches sharded
# over all ranks. (name of their runs, plan, context parallelism)
DEPLOYMENTS = (("TP8", TP8, False), ("TP16 DCP", TP16, True))
QUIET_SHARE = {"cpu": 0.2, "cuda": 0.05}  # of the skewed steps, run twice without skew
KNOWN = {"cpu": 4, "cuda": 1}  # steps whose hashes the host computes
KEPT = 0.1  # of the time: for what comes after the runs


@dataclass(frozen=True)
class Plan:
    """What to do. ``exchanges``: that must pass without a failure. ``seconds``: for all stages together.

    ``backends``: providers whose whole decode steps are walked again, over ``repeats`` steps.
    """

    device: str
    ranks: int
    lanes: int
    layers: str
    exchanges: int
    seconds: float
    modes: tuple[str, ...]
    batches: tuple[int, ...] = BATCHES
    seed: int = 0
    every_fault: bool = False
    trials: int = 1
    timed: bool = False
    backends: tuple[str, ...] = ()
    repeats: int = 0


@dataclass
class Control:
    """A planted fault and what became of it. ``after``: exchanges until it was found, 0 if it was not."""

    fault: Planted
    found: bool
    after: int
    words: str
    seconds: float


@dataclass
class Results:
    """Everything a run gave. ``compared``: steps over which hashes agreed, by what was compared. ``a_step``:
    the fewest exchanges of a step, by deployment."""

    plan: Plan
    runs: list[Outcome] = field(default_factory=list)
    quiet: list[Outcome] = field(default_factory=list)
    controls: list[Control] = field(default_factory=list)
    drills: list[Drill] = field(default_factory=list)
    tensors: list[Answer] = field(default_factory=list)
    fused: list[Answer] = field(default_factory=list)
    repeats: list[Repeat] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    compared: dict[str, int] = field(default_factory=dict)
    timed: dict[str, float] = field(default_factory=dict)
    a_step: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def exchanges(self) -> int:
        """Skewed exchanges that every lane of every rank completed."""
        return sum(run.exchanges for run in self.runs)

    @property
    def doubts(self) -> list[str]:
        """Why a run without failures is no pass."""
        missed = [c for c in self.controls if not c.found]
        found = [
            f"planted fault {c.fault.name} was not found: {', '.join(c.fault.modes)} proves nothing"
            for c in missed
        ]
        found += [
            f"{d.kind} of rank {d.victim}: not named in time: {d.words}" for d in self.drills if not d.right
        ]
        drilled, asked = len(self.drills), 2 * self.plan.trials * ("watchdog" in self.plan.modes)
        if drilled < asked and not self.errors:
            found.append(f"{drilled} of {asked} trials in the time given; more (--seconds) would do")
        found += [f"{r.backend}: a flipped bit went unnoticed" for r in self.repeats if not r.noticed]
        both = [
            f"{what} {deployment}" for deployment, *_ in DEPLOYMENTS for what in ("skewed", "quiet again")
        ]
        wanted = dict.fromkeys([*(run.job.name for run in self.runs), *both])
        if alone := [name for name in wanted if name not in self.compared]:
            found.append(
                f"no time was left to compare {', '.join(alone)} with a quiet run; more (--seconds) would do"
            )
        if self.exchanges < self.plan.exchanges:
            spent = sum(run.seconds for run in self.runs)
            more = spent * (self.plan.exchanges / self.exchanges - 1) if self.exchanges else 0.0
            about = f"about {more:,.0f} s " if more else ""
            short = f"{self.exchanges:,} of {self.plan.exchanges:,} exchanges in the time given"
            found.append(f"{short}; {about}more (--seconds) would do")
        return found

    @property
    def verdict(self) -> Verdict:
        return verdict(self.failures, self.errors, self.doubts)


def carry_out(results: Results, say: Callable[[str], None], kernels: str = "") -> None:
    """All stages of ``results.plan``, into ``results``. Raises UserError where ranks cannot be started."""
    began = time.monotonic()
    try:
        _stages(results, began, say, kernels or KERNELS)
        _repeats(results.plan, results, say)
    finally:
        results.seconds = time.monotonic() - began


def _stages(results: Results, began: float, say: Callable[[str], None], kernels: str) -> None:
    """All that one crew does."""
    plan = results.plan
    with Crew(plan.ranks, plan.lanes, plan.device, kernels) as crew:
        results.a_step = {deployment[0]: _fewest(plan, crew, deployment) for deployment in DEPLOYMENTS}
        for stage in (_tensors, _controls, _runs, _fused, _drills):
            if results.errors:
                break
            try:
                stage(plan, crew, results, began + plan.seconds, say)
            except Lost as lost:
                results.errors.append(str(lost))


def _repeats(plan: Plan, results: Results, say: Callable[[str], None]) -> None:
    """Whole decode steps of each backend, walked again and under load."""
    for backend in plan.backends if "hashes" in plan.modes else ():
        repeat = repeated(backend, plan.repeats, plan.seed, plan.device)
        results.repeats.append(repeat)
        results.failures += repeat.parted
        say(f"decode steps by {backend}: {repeat.steps} steps, {repeat.parted or 'bit-equal'}")


def _job(plan: Plan, name: str, steps: int, /, **more: object) -> Job:
    device = plan.device
    job = Job(
        name, plan.layers, TP8, plan.batches, steps=steps, chunk=min(CHUNK[device], max(1, steps)),
        seed=plan.seed, patience=PATIENCE[device],
    )  # fmt: skip
    return replace(job, **more)  # type: ignore[arg-type]


def _run(crew: Crew, job: Job, results: Results, say: Callable[[str], None]) -> Outcome:
    """One run that should not fail; what is wrong with it is kept."""
    outcome = crew.run(job)
    said = outcome.failures(crew.layout)
    words = f"{job.name}: {outcome.exchanges:,} exchanges in {outcome.seconds:.1f} s"
    say(f"{words}: {said[0]}" if said else words)
    if outcome.deaths:
        results.errors += [f"{job.name}: {line}" for line in outcome.culprits(crew.layout)]
        crew.restart()
    else:
        results.failures += [f"{job.name}: {line}" for line in said]
    return outcome


def _tensors(plan: Plan, crew: Crew, results: Results, until: float, say: Callable[[str], None]) -> None:
    """Exchanges of real tensors, right bit for bit; with NCCL's times if asked for."""
    crew.tell(Order("job", _job(plan, "tensors", 1)))
    crew.gather("ready", 60.0)
    crew.tell(Order("compare", steps=int(plan.timed)))
    results.tensors = crew.gather("compared", 150.0)
    results.failures += [f"rank {a.rank}: {line}" for a in results.tensors for line in a.findings]
    results.timed = results.tensors[0].timed
    say(f"real tensors: {results.tensors[0].exchanges} exchanges, {len(results.failures)} wrong")


def _fused(plan: Plan, crew: Crew, results: Results, until: float, say: Callable[[str], None]) -> None:
    """Exchanges fused with products and norm, on numbers whose sums are exact."""
    crew.tell(Order("job", _job(plan, "fused", 1)))
    crew.gather("ready", 60.0)
    crew.tell(Order("fused"))
    results.fused = crew.gather("fused", 120.0)
    wrong = [f"rank {a.rank}: {line}" for a in results.fused for line in a.findings]
    results.failures += wrong
    say(f"fused exchanges: {results.fused[0].exchanges} calls, {len(wrong)} wrong")


def _controls(plan: Plan, crew: Crew, results: Results, until: float, say: Callable[[str], None]) -> None:
    """Every mode with a protocol that is broken on purpose."""
    for fault in controls(list(plan.modes), plan.every_fault):
        control = planted(plan, crew, fault)
        results.controls.append(control)
        say(
            f"planted {fault.name}: "
            + (f"found after {control.after:,} exchanges" if control.found else "NOT FOUND")
        )


def planted(plan: Plan, crew: Crew, fault: Planted) -> Control:
    """Run one broken protocol under the first mode that it is the control of."""
    device = plan.device
    steps = fault.steps if device == "cpu" else PLANTED_STEPS
    chunk = max(1, min(CHUNK[device], steps // 6))
    job = Job(
        fault.name, fault.layers, TP8, fault.batches, True, steps, chunk, plan.seed,
        fault.launched, only(fault.modes[0], device, plan.seed), fault.name, IMPATIENCE[device],
        dcp=fault.dcp,
    )  # fmt: skip
    outcome = crew.run(job)
    said = outcome.failures(crew.layout)
    control = Control(
        fault,
        bool(said) and not outcome.deaths,
        _found_after(outcome, crew, fault),
        said[0] if said else "",
        outcome.seconds,
    )
    if outcome.deaths:
        crew.restart()
    return control


def _found_after(outcome: Outcome, crew: Crew, fault: Planted) -> int:
    """Exchanges of one rank until the first thing that was wrong."""
    faults = outcome.faults(crew.layout)
    if not faults:
        return outcome.exchanges if outcome.failures(crew.layout) else 0
    schedule = scheduled(outcome.job, faults[0].rank, crew.layout, fault)
    before = sum(exchanges(schedule.variants[v]) for v in schedule.variant_of[: faults[0].step])
    return before + faults[0].order + 1


def _runs(plan: Plan, crew: Crew, results: Results, until: float, say: Callable[[str], None]) -> None:
    """Every deployment in turn, each with its share of the exchanges and of the time that are left."""
    for number, deployment in enumerate(DEPLOYMENTS):
        left, now = len(DEPLOYMENTS) - number, time.monotonic()
        wanted = max(1, -(-(plan.exchanges - results.exchanges) // left))
        _deployed(plan, crew, results, now + (until - now) / left, say, deployment, wanted)
        if results.failures or results.errors:
            return


def _deployed(
    plan: Plan, crew: Crew, results: Results, until: float, say: Callable[[str], None],
    deployment: tuple[str, int, bool], wanted: int,
) -> None:  # fmt: skip
    """Skewed, skewed kernel by kernel, quiet and quiet again; then their hashes."""
    skew = of(list(plan.modes), plan.device, plan.seed)

    def job(name: str, steps: int, **more: object) -> Job:
        return _of(plan, deployment, name, steps, **{"skew": skew, **more})

    pilot = _run(crew, job("pilot", PILOT[plan.device]), results, say)
    if results.failures or results.errors or not pilot.exchanges:
        return
    budget = (until - time.monotonic()) * (1 - KEPT)
    steps = -(-wanted // results.a_step[deployment[0]])
    steps = max(1, min(steps, int(budget * SKEWED[plan.device] * pilot.steps / pilot.seconds)))
    jobs = [job("skewed", steps)]
    if "replay" in plan.modes:
        first = _run(crew, job("pilot replayed", pilot.steps, launched=True), results, say)
        if results.failures or results.errors or not first.exchanges:
            return
        replayed = max(1, min(steps // 8, int(budget * REPLAYED[plan.device] * first.steps / first.seconds)))
        jobs.append(job("replayed", replayed, launched=True))
    runs: list[Outcome] = []
    for one in jobs:
        runs.append(_run(crew, one, results, say))
        results.runs.append(runs[-1])
        if results.errors:
            return
    quiet: list[Outcome] = []
    for name in ("quiet", "quiet again"):
        if time.monotonic() < until:
            short = max(1, int(steps * QUIET_SHARE[plan.device]))
            quiet.append(_run(crew, job(name, short, skew=QUIET), results, say))
    results.quiet += quiet
    _compare(results, runs, quiet)
    _known(results, crew, quiet)


def _of(plan: Plan, deployment: tuple[str, int, bool], name: str, steps: int, **more: object) -> Job:
    """A job of one deployment."""
    return _job(plan, f"{name} {deployment[0]}", steps, plan=deployment[1], dcp=deployment[2], **more)


def _fewest(plan: Plan, crew: Crew, deployment: tuple[str, int, bool]) -> int:
    """Exchanges of the step that has the fewest."""
    every = _of(plan, deployment, "count", len(plan.batches), in_turn=True)
    return min(exchanges(steps) for steps in scheduled(every, 0, crew.layout, None).variants)


def _compare(results: Results, runs: list[Outcome], quiet: list[Outcome]) -> None:
    """Hashes of every run of a deployment against those of its first quiet one."""
    if not quiet or not quiet[0].answers:
        return
    for outcome in (*quiet[1:], *runs):
        if not outcome.answers:
            continue
        one, other = quiet[0].answers[0].hashes, outcome.answers[0].hashes
        step = first_difference(one, other)
        if step is not None:
            results.failures.append(f"hashes: {outcome.job.name} parts from the quiet run at step {step}")
        else:
            results.compared[outcome.job.name] = min(len(one), len(other)) // 8


def _known(results: Results, crew: Crew, quiet: list[Outcome]) -> None:
    """Hashes of the first steps against those that the host computes."""
    drawn = importlib.import_module(crew.kernels).raw_words
    for outcome in quiet[:1]:
        if outcome.answers and not results.failures:
            steps = min(KNOWN[crew.device], outcome.steps)
            known = expected.hashes(outcome.job, crew.layout, steps, drawn)
            step = first_difference(known, outcome.answers[0].hashes[: 8 * steps])
            if step is not None:
                results.failures.append(
                    f"hashes: all ranks of {outcome.job.name} part from what the host computes at step {step}"
                )


def _drills(plan: Plan, crew: Crew, results: Results, until: float, say: Callable[[str], None]) -> None:
    """Hangs, then deaths; each death costs a crew."""
    if "watchdog" not in plan.modes:
        return
    steps = 6 if plan.device == "cpu" else 64
    job = _job(
        plan,
        "drill",
        steps,
        chunk=max(1, steps // 6),
        batches=(8,),
        layers="DKA",
        patience=IMPATIENCE[plan.device],
    )
    longer = replace(job, steps=steps * (40 if plan.device == "cpu" else 400))
    for trial in range(plan.trials):
        for drill, base in ((drills.hang, job), (drills.kill, longer)):
            if trial and time.monotonic() > until:
                return
            if trial and drill is drills.hang:  # the trial before killed a rank
                crew.restart()
            last = drill(crew, base, trial)
            results.drills.append(last)
            named = f"named in {last.seconds:.1f} s" if last.right else "NOT NAMED"
            say(f"{last.kind} {trial + 1} of {plan.trials}: rank {last.victim} {named}")


def bound_words(results: Results) -> str:
    """What the run vouches for."""
    said = bound.words(results.exchanges, 0)
    tokens = bound.reply_vouched_for(results.exchanges, exchanges_a_token(), 1.0)
    if not tokens:
        return f"{said}, too few for one of Kimi K3's steps"
    return f"{said}; of Kimi K3's steps, less than one failure in {tokens:,}"

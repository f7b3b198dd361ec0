"""Which steps the specialised path serves, as data (sections 5.2 and 5.3 of the specification).

A step is described by what ``plan()`` may look at: runtime mode, row count and the counts of each layer's
metadata. Catches: nothing by itself; ``lockstep dispatch`` compares an implementation with it. Cannot
represent: values of slots and lengths, on which no decision may depend.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

ROWS_MOST = 64
ALWAYS = (*range(1, 9), 16, 32, 64)


@dataclass(frozen=True)
class Counts:
    """Metadata counts of one layer kind: ``rows`` are staged rows of KDA, or decode tokens of MLA."""

    prefills: int = 0
    decodes: int = 0
    decode_tokens: int = 0
    spec: int = 0
    spec_tokens: int = 0
    spec_rows: int = 0


@dataclass(frozen=True)
class StepKind:
    """One step as ``plan()`` sees it. ``tokens``: of a verify step, from the configuration. ``metadata``
    False: a layer has none."""

    name: str
    rows: int
    capturing: bool = True
    mode: str = "FULL"
    intermediate: bool = False
    metadata: bool = True
    embeds: bool = False
    tokens: int = 1
    kda: Counts = Counts()
    mla: Counts = Counts()
    captured: tuple[int, ...] = ()


@dataclass(frozen=True)
class Row:
    """One line of the truth table: ``tokens`` is the q of a specialised step, 0 means fallback."""

    step: StepKind
    tokens: int
    why: str


def prepared(captured: tuple[int, ...], tokens: int) -> tuple[int, ...]:
    """Row counts that are prepared: the fixed ones and every capture size rounded up to whole requests."""
    rounded = {-(-size // tokens) * tokens for size in captured}
    return tuple(sorted({*ALWAYS, *(size for size in rounded if size <= ROWS_MOST)}))


def plain(name: str, rows: int, **more: object) -> StepKind:
    """A decode step of ``rows`` requests, one token each."""
    counts = Counts(decodes=rows, decode_tokens=rows)
    return replace(StepKind(name, rows, kda=counts, mla=counts), **more)  # type: ignore[arg-type]


def verified(name: str, requests: int, q: int, staged: int | None = None, **more: object) -> StepKind:
    """A verify step of ``requests`` requests with ``q`` tokens, padded to ``staged`` requests."""
    all_rows = staged or requests
    kda = Counts(spec=requests, spec_tokens=requests * q, spec_rows=all_rows)
    mla = Counts(decodes=all_rows, decode_tokens=all_rows * q)
    return replace(StepKind(name, all_rows * q, tokens=q, kda=kda, mla=mla), **more)  # type: ignore[arg-type]


def _mixed() -> StepKind:
    step = verified("verify rows mixed with plain rows", 2, 4)
    return replace(step, rows=9, kda=replace(step.kda, decodes=1, decode_tokens=1))


def _partial() -> StepKind:
    step = verified("partial drafts", 2, 4)
    return replace(step, kda=replace(step.kda, spec_tokens=7))


def _prompt(name: str, rows: int, kda: int = 1, mla: int = 1) -> StepKind:
    step = plain(name, rows)
    return replace(step, kda=replace(step.kda, prefills=kda), mla=replace(step.mla, prefills=mla))


TRUTH: tuple[Row, ...] = (
    *(Row(plain(f"plain decode of {n}", n), 1, "prepared batch of plain decodes") for n in ALWAYS),
    Row(plain("plain decode of 9", 9), 0, "9 rows are not prepared"),
    Row(plain("plain decode of 24", 24), 0, "24 rows are not prepared"),
    Row(plain("plain decode of a captured 24", 24, captured=(24,)), 1, "prepared batch of plain decodes"),
    Row(plain("plain decode of 65", 65, captured=(65,)), 0, "65 rows are not prepared"),
    Row(plain("eager plain decode", 4, capturing=False), 0, "the stream is not capturing"),
    Row(plain("profiling run", 64, capturing=False, metadata=False), 0, "the stream is not capturing"),
    Row(plain("piecewise capture", 4, mode="PIECEWISE"), 0, "runtime mode PIECEWISE"),
    Row(plain("capture without graphs", 4, mode="NONE"), 0, "runtime mode NONE"),
    Row(plain("pipeline stage", 4, intermediate=True), 0, "intermediate tensors"),
    Row(plain("capture without metadata", 4, metadata=False), 0, "a layer has no metadata"),
    Row(plain("embeddings given", 4, embeds=True), 1, "prepared batch of plain decodes"),
    Row(_prompt("chunked prefill beside decodes", 5), 0, "prefills"),
    Row(_prompt("last prompt chunk as prefill", 8), 0, "prefills"),
    Row(_prompt("prompt in a KDA layer alone", 8, mla=0), 0, "prefills"),
    Row(_prompt("prompt in an MLA layer alone", 8, kda=0), 0, "prefills"),
    *(
        Row(verified(f"verify {r} x {q}", r, q), q, "uniform verify")
        for r, q in ((1, 2), (2, 4), (4, 8), (8, 8), (1, 8))
    ),
    Row(verified("verify padded to 4 requests", 3, 2, staged=4), 2, "uniform verify"),
    Row(verified("verify 3 x 4 not prepared", 3, 4), 0, "12 rows are not prepared"),
    Row(verified("verify 3 x 4 captured", 3, 4, captured=(12,)), 4, "uniform verify"),
    Row(verified("verify 2 x 5 of a capture of 9", 2, 5, captured=(9,)), 5, "uniform verify"),
    Row(verified("verify 9 x 8", 9, 8, captured=(72,)), 0, "72 rows are not prepared"),
    Row(replace(verified("rows that are no whole requests", 2, 4), rows=7), 0, "7 rows of 4 tokens"),
    Row(replace(_mixed(), rows=16), 0, "verify rows mixed with others"),
    Row(_partial(), 0, "verify rows mixed with others"),
    Row(
        replace(verified("keys of other rows", 2, 4), mla=Counts(decodes=2, decode_tokens=7)),
        0,
        "verify rows mixed with others",
    ),
    Row(
        replace(verified("verify beside a prompt", 2, 4), kda=Counts(1, spec=2, spec_tokens=8, spec_rows=2)),
        0,
        "verify rows mixed with others",
    ),
)


def decide(s: StepKind) -> tuple[int, str]:
    """(q, why) of a step by the rules of section 5.2 in order: q of the specialised step, 0 for the
    fallback."""
    if not s.capturing:
        return 0, "the stream is not capturing"
    if s.intermediate:
        return 0, "intermediate tensors"
    if s.mode != "FULL":
        return 0, f"runtime mode {s.mode}"
    if not s.metadata:
        return 0, "a layer has no metadata"
    if s.rows not in prepared(s.captured, s.tokens):
        return 0, f"{s.rows} rows are not prepared"
    if not s.kda.spec:
        return (0, "prefills") if s.kda.prefills or s.mla.prefills else (1, "prepared batch of plain decodes")
    q = s.tokens
    if s.rows % q:
        return 0, f"{s.rows} rows of {q} tokens"
    uniform = s.kda.spec_rows * q == s.rows and s.kda.spec_tokens == s.kda.spec * q
    alone = not s.kda.decodes and not s.kda.prefills
    keys = s.mla.decode_tokens == s.mla.decodes * q == s.rows
    return (q, "uniform verify") if uniform and alone and keys else (0, "verify rows mixed with others")


def graph_for(requests: int, q: int, sizes: tuple[int, ...], prefilling: bool) -> int | None:
    """Rows of the graph that a step replays (section 5.3): the smallest captured one that holds it; None
    (stock) beyond the largest, and whenever a request is still in prefill."""
    if prefilling or requests * q > ROWS_MOST:
        return None
    return min((size for size in sizes if size >= requests * q and size % q == 0), default=None)

"""One question to the checker: how many ranks, which layers, which batches, and which kernels a step
launches.

Letters of a layer pattern: K is KDA with experts, A is MLA with experts, D is KDA with a dense MLP summed by
the framework, L a layer whose MLP has no exchange between ranks. Bare layers, which the subject has only
within others: R is one call of a Lamport all-reduce with three stages, E the experts' workspaces, S the
small-batch mailboxes of one rank; nothing else synchronises them.

What this catches: patterns, ranks and batches that cannot be, in one line. What it cannot say: which of two
captured variants a replay takes; a batch stands for its own captured graph.
"""

from __future__ import annotations

from dataclasses import dataclass

from validation.errors import UserError

LETTERS, MOE, MLA, STORES = "KADLRES", "KARES", "A", "KAS"
BARE = {"R": ["RingCall"], "E": ["ExpertRows"], "S": ["SmallStores", "SmallFront"]}
MOST_RANKS, MOST_LAYERS, MOST_ROWS, MOST_EVENTS = 16, 256, 64, 60_000
TP8, TP16 = 8, 16


@dataclass(frozen=True)
class Setting:
    """``plan``: whose dispatch the kernels follow, TP8's or TP16's, however many ranks are modelled.

    ``batches``: rows of each step in turn. ``targets``: exchanges modelled word for word; the others carry
    synchronisation with one word a slot. ``stops``: layers that the first step makes before it is abandoned
    (0: all). ``other_batches``: (rank, batches) of a rank that takes another plan. ``other_token``: (rank,
    step) from which a rank works on another token. ``missing``: edges that are left out. ``barrier``: a step
    starts with the framework's all-reduce of the embedding.
    """

    ranks: int = 2
    layers: str = "DKKAK"
    batches: tuple[int, ...] = (64, 1)
    plan: int = TP8
    dcp: bool = False
    targets: tuple[str, ...] = ()
    stops: int = 0
    other_batches: tuple[int, tuple[int, ...]] | None = None
    other_token: tuple[int, int] | None = None
    missing: tuple[str, ...] = ()
    barrier: bool = True


def check(setting: Setting) -> None:
    """Raise UserError if no such decode step can exist."""
    if not 2 <= setting.ranks <= MOST_RANKS:
        raise UserError(f"--ranks {setting.ranks}: an exchange needs 2 to {MOST_RANKS} ranks")
    if not setting.layers:
        raise UserError("--layers: a step has at least 1 layer")
    if len(setting.layers) > MOST_LAYERS:
        raise UserError(f"{len(setting.layers)} layers: at most {MOST_LAYERS} can be explored or run")
    if wrong := [letter for letter in setting.layers if letter not in LETTERS]:
        raise UserError(f"--layers {setting.layers}: no layer '{wrong[0]}'; there are {', '.join(LETTERS)}")
    if not setting.batches:
        raise UserError("--batches: at least one step")
    for batch in setting.batches:
        if not 1 <= batch <= MOST_ROWS:
            raise UserError(f"--batches {batch}: a decode step of the subject has 1 to {MOST_ROWS} rows")


def pattern(moe_layers: int) -> str:
    """A pattern like the subject's: one dense layer, then experts, MLA in every fourth layer.

    Raises UserError for fewer than 1 expert layer.
    """
    if moe_layers < 1:
        raise UserError(f"--moe-layers {moe_layers}: a step has at least 1 layer with experts")
    return "D" + "".join("A" if i % 4 == 3 else "K" for i in range(1, moe_layers + 1))


def groups(batches: tuple[int, ...]) -> tuple[int, ...]:
    """Rows in groups that the same batches use: the upper bound of each."""
    return tuple(sorted(set(batches)))


def launches(setting: Setting, layer: int, batch: int) -> list[str]:
    """Kernels of one layer in launch order (kimi_k3_ops.md, table 3.0; side kernels where they fork)."""
    letter = setting.layers[layer]
    if letter in BARE:
        return BARE[letter] if letter != "E" or batch <= 8 else ["ExpertsGrouped"]
    ring = layer > 0 and setting.layers[layer - 1] in "KA"
    names = ["AttnResRing" if ring else "AttnRes"]
    names.append("Projection" if batch <= 2 else "SplitK")
    names += ["MlaQuery", "Attention", "DcpValue"] if letter in MLA and setting.dcp else ["Core"]
    two_shot = batch >= (33 if setting.plan == TP8 else 17)
    fused = setting.plan == TP16 and batch <= 8 and (letter not in MLA or batch >= 5)
    if two_shot:
        names += ["OprojPush", "OprojTwoShot"]
    else:
        names += ["OprojFused"] if fused else ["OprojProducer", "OprojConsumer"]
    if letter in "KA":
        return names + _experts(setting.plan, batch)
    return [*names, "Dense" if letter == "D" else "LocalMlp"]


def small(plan: int, batch: int) -> bool:
    """Does the small-batch chain serve this batch (sections 3.18, 3.19)?"""
    return batch <= (1 if plan == TP8 else 2)


def _experts(plan: int, batch: int) -> list[str]:
    if small(plan, batch):
        if plan == TP8:
            return ["MoeFrontTP8", "ClusterExpertsTP8", "MoeSharedTP8", "MoeTailPoll"]
        return ["MoeFrontTP16", "ClusterExpertsTP16", "MoeTailPoll"]
    if batch <= (4 if plan == TP8 else 8):
        return ["SharedRows", "SharedKeep", "FrontGemm", "RouteSitu", "ExpertRows", "MoeTail"]
    side = ["SharedRows", "SharedDown", "FrontGemm"]
    if batch <= 8:
        return [*side, "RouteSitu", "Experts", "WaveTail"]
    if plan == TP16 and batch >= 33:
        return [*side, "RouteLean", "ExpertsTwoShot", "WaveTailTwoShot"]
    return [*side, "RouteLean", "ExpertsGrouped", "WaveTailReduced"]


def last(setting: Setting) -> list[str]:
    """Kernels after the last layer."""
    ring = setting.layers[-1] in "KA"
    return ["FinalAttnRes" if ring else "FinalDense", "Sampler", "HostRead"]

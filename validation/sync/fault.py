"""A planted fault: edits of the protocols' data, and the setting in which it must be found.

What this catches: edits that name nothing. What it cannot say: faults that are not a change of the data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from validation.sync.exchange import Act, Kernel, Subject
from validation.sync.setting import Setting


@dataclass(frozen=True)
class Edit:
    """``exchange`` and ``kernel`` set a field; ``drop`` leaves an action out; ``swap`` puts another in its
    place.
    """

    what: Literal["exchange", "kernel", "drop", "swap"]
    name: str
    field: str = ""
    value: Any = None


@dataclass(frozen=True)
class Fault:
    """``kind`` and ``report``: of the catalogue of public reports. Without edits the setting itself is the
    fault; ``safe`` is then the layer pattern that is none.
    """

    name: str
    kind: str
    setting: Setting
    edits: tuple[Edit, ...] = ()
    report: str = ""
    safe: str = ""

    @property
    def twin(self) -> Setting:
        """The setting without what is wrong with it."""
        layers = self.safe or self.setting.layers
        return replace(self.setting, layers=layers, stops=0, other_batches=None, other_token=None, missing=())


def planted(subject: Subject, edits: tuple[Edit, ...]) -> Subject:
    """The protocols with the edits. Raises KeyError or ValueError where one names nothing."""
    exchanges, kernels = dict(subject.exchanges), dict(subject.kernels)
    for edit in edits:
        if edit.what == "exchange":
            exchanges[edit.name] = replace(exchanges[edit.name], **{edit.field: edit.value})
        elif edit.what == "kernel":
            kernels[edit.name] = replace(kernels[edit.name], **{edit.field: edit.value})
        else:
            kernels[edit.name] = _rewritten(kernels[edit.name], edit)
    return Subject(exchanges, kernels)


def _rewritten(kernel: Kernel, edit: Edit) -> Kernel:
    old, new = edit.value if edit.what == "swap" else (edit.value, None)
    if not any(act == old for chain in kernel.chains for act in chain):
        raise ValueError(f"{kernel.name} has no {old}")
    acts: list[tuple[Act, ...]] = []
    for chain in kernel.chains:
        acts.append(tuple(new if act == old and new else act for act in chain if act != old or new))
    return replace(kernel, chains=tuple(acts))

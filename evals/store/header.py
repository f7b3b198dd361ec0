"""store.json: what a store is, so that a run never continues another one's samples.

What this catches: a store of another configuration (the first setting that differs is named), another schema,
a damaged header, a folder that is no store. What it cannot catch: settings that the caller leaves out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from evals.store import disk
from validation.errors import UserError

FILE = "store.json"
SCHEMA = "lockstep.samples/1"


@dataclass(frozen=True)
class Header:
    """``configuration``: hash of all that decides what is sampled; ``settings``: the same, readable."""

    run: str
    configuration: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    created: str = ""
    schema: str = SCHEMA


def agree(folder: Path, run: str, configuration: str, settings: Mapping[str, Any]) -> Header:
    """The header of the store, made if the folder is new.

    Raises UserError if it is another configuration's.
    """
    if (folder / FILE).exists():
        header = load(folder)
        if header.configuration != configuration:
            raise UserError(
                f"the store {folder} was made with another configuration "
                f"({_what(header, configuration, settings)}); "
                "resume with the arms file it was made with, or name another folder"
            )
        return header
    if any(folder.glob("part-*")) or any(folder.glob("journal-*")):
        raise UserError(f"the store {folder} has samples but no {FILE}; put it back or name another folder")
    header = Header(run, configuration, dict(settings), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    temporary = folder / f"{FILE}.tmp"
    temporary.write_text(json.dumps(asdict(header), indent=1, default=str) + "\n", "utf-8")
    disk.publish(temporary, folder / FILE)
    return header


def load(folder: Path) -> Header:
    """Read the header. Raises UserError if there is none or it is damaged."""
    path = folder / FILE
    try:
        plain = json.loads(path.read_bytes())
        schema = plain["schema"]
        if schema == SCHEMA:
            return Header(**plain)
    except FileNotFoundError:
        raise UserError(f"{folder} is no sample store: it has no {FILE}; name the folder of a run") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = " ".join(str(error).split())
        raise UserError(f"{path} is damaged ({what}); name another folder") from None
    raise UserError(f"{path} has the schema {schema}, this version reads {SCHEMA}; name another folder")


def _what(header: Header, configuration: str, settings: Mapping[str, Any]) -> str:
    plain = json.loads(json.dumps(dict(settings), default=str))
    for name in sorted({*header.settings, *plain}):
        there, here = header.settings.get(name, "not set"), plain.get(name, "not set")
        if there != here:
            return f"{name}: {there} there, {here} here"
    return f"{header.configuration} there, {configuration} here"

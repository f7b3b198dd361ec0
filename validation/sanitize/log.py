"""What compute-sanitizer wrote, as reports: kernel, instruction, thread, block, address.

A report is a line, and what follows it with more indentation (NVIDIA's manual of Compute Sanitizer):

    ========= Invalid __global__ read of size 4 bytes
    =========     at skinny_kernel+0x120 in projection.py:88
    =========     by thread (31,0,0) in block (2,0,0)
    =========     Access to 0x7f3c7ec000fc is out of bounds

What this catches: a log without a summary (the tool did not get to its end), lines by which the tool says
that it lost track, a summary that counts reports of which none could be read. What it cannot catch: reports
that the tool itself dropped without a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

PREFIX = "========="
# Lines that go on with a report, should they ever stand without indentation.
FURTHER = re.compile(
    r"\s{2,}|(at|by|and|Address|Access to|Saved host|Host Frame|Device Frame|Current Value|Write Thread|"
    r"Read Thread)\b"
)
REPORT = re.compile(
    r"Invalid __|Uninitialized |Potential invalid __|Malloc/Free|Stack overflow|Deadlock detected"
    r"|.* error detected\b|(?i:error|warning|info): .*(Race reported|hazard detected)"
)
SUMMARY = re.compile(r"(?P<kind>ERROR|RACECHECK) SUMMARY: (?P<count>[\d,]+)")
SILENT = re.compile(r"[\d,]+ errors? (were|was) not printed")
AT = re.compile(r"\bat (?P<name>[A-Za-z_$][\w$]*)[^+\n]*?[+:](?P<at>0x[0-9a-f]+)(?: in (?P<source>\S+:\d+))?")
FRAME = re.compile(
    r"Device Frame: ?(?P<name>[A-Za-z_$][\w$]*)[^+\n]*?[+:](?P<at>0x[0-9a-f]+)(?: in (?P<source>\S+:\d+))?"
)
THREAD = re.compile(r"by thread (?P<thread>\([\d,]+\)) in block (?P<block>\([\d,]+\))")
RACING = re.compile(r"(?P<access>Write|Read|Atomic) Thread (?P<thread>\([\d,]+\))")
IN_BLOCK = re.compile(r"in block (?P<block>\([\d, ]+\))")
ADDRESS = re.compile(r"(?:Address|Access to|__shared__) (?P<address>0x[0-9a-f]+)")


@dataclass(frozen=True)
class Report:
    """One report. ``at``: instruction and source line, both of them for a race. ``count``: reports of the
    same instruction, by other threads."""

    what: str
    kernel: str
    at: str
    thread: str = ""
    block: str = ""
    address: str = ""
    count: int = 1

    @property
    def where(self) -> str:
        """Thread, address and instruction in words."""
        thread = f"thread {self.thread}" + (f" of block {self.block}" if self.block else "")
        words = (thread if self.thread else "", f"address {self.address}" if self.address else "", self.at)
        return ", ".join(filter(None, words))


@dataclass
class Log:
    """A whole log. ``counted``: what the tool's own summary says, None without one. ``troubles``: lines by
    which the tool says that something went wrong with itself or its program."""

    reports: list[Report] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    counted: int | None = None

    def doubts(self) -> list[str]:
        """Why the absence of reports would prove nothing."""
        found = [f"the tool says: {line}" for line in self.troubles]
        if self.counted is None:
            found.append("the tool wrote no summary")
        elif self.counted and not self.reports:
            found.append(f"the tool counts {self.counted} errors, of which no report could be read")
        return found


def parse(text: str) -> Log:
    """Read a log; lines of the program itself, which lack the prefix, are skipped."""
    log = Log()
    for record in _records(text):
        head = record[0]
        if REPORT.match(head):
            log.reports.append(_report(record))
        elif found := SUMMARY.match(head):
            log.counted = (log.counted or 0) + int(found["count"].replace(",", ""))
        elif not (head == "COMPUTE-SANITIZER" or SILENT.match(head) or head.startswith("LEAK SUMMARY")):
            log.troubles.append(" ".join(" ".join(record).split()))
    log.reports = list(merged(log.reports))
    return log


def _records(text: str) -> Iterator[list[str]]:
    """Each report, summary or remark of the tool with the lines that belong to it."""
    record: list[str] = []
    for line in text.splitlines():
        if not line.startswith(PREFIX):
            continue
        rest = line[len(PREFIX) :].removeprefix(" ")
        if rest.strip() and record and FURTHER.match(rest):
            record.append(rest.strip())
            continue
        if record:
            yield record
        record = [rest.strip()] if rest.strip() else []
    if record:
        yield record


def _report(record: list[str]) -> Report:
    whole = "\n".join(record)
    places = [f"{found['name']}+{found['at']}{_source(found)}" for found in AT.finditer(whole)]
    # The last frame is the kernel; without frames the instruction is in the kernel itself.
    names = [found["name"] for pattern in (FRAME, AT) for found in reversed(list(pattern.finditer(whole)))]
    by, racing = THREAD.search(whole), list(RACING.finditer(whole))
    block, address = IN_BLOCK.search(whole), ADDRESS.search(whole)
    threads = " and ".join(f"{r['thread']} ({r['access'].lower()})" for r in racing)
    return Report(
        what=_what(record),
        kernel=names[0] if names else "",
        at=" and ".join(dict.fromkeys(places)),
        thread=by["thread"] if by else threads,
        block=block["block"] if block else "",
        address=address["address"] if address else "",
    )


def _source(found: re.Match[str]) -> str:
    return f" ({found['source']})" if found["source"] else ""


def _what(record: list[str]) -> str:
    """The first line without places and addresses, so that reports of one instruction are alike, and what the
    tool says about the address."""
    head = re.sub(r" at (__shared__ 0x[0-9a-f]+ )?in block .*| at [A-Za-z_$][\w$]*.*", "", record[0]).rstrip(
        " .:"
    )
    if "Race reported" in head:
        accesses = re.findall(r"(Write|Read|Atomic) access", " ".join(record))
        head = f"{head.partition('Race')[0]}race between {' and '.join(a.lower() for a in accesses)} access"
    said = re.search(r"(?:Address|Access to) 0x[0-9a-f]+ (.*)", "\n".join(record))
    return f"{head}: {said[1]}" if said else head


def merged(reports: Iterable[Report]) -> Iterator[Report]:
    """One report an instruction, the first that was seen, with how many there were."""
    found: dict[tuple[str, str, str], Report] = {}
    for report in reports:
        key = (report.what, report.kernel, report.at)
        before = found.get(key)
        found[key] = replace(before, count=before.count + report.count) if before else report
    yield from found.values()

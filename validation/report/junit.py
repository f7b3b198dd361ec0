"""The document as JUnit XML: one testcase a case, for CI that shows it.

What this catches: nothing. What it cannot carry: a verdict of its own; ``undecided`` becomes an error of type
"undecided", so that no CI counts it as passed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from xml.etree import ElementTree as Xml

from validation.report.schema import CaseResult, Document
from validation.report.words import finding_words

ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(document: Document) -> str:
    """XML text with one suite per operation and provider."""
    root = Xml.Element("testsuites", name="lockstep")
    pairs: dict[tuple[str, str], list[CaseResult]] = defaultdict(list)
    for result in document.cases:
        pairs[result.op, result.provider].append(result)
    for (op, provider), results in pairs.items():
        suite = Xml.SubElement(root, "testsuite", name=f"{op} by {provider}")
        for result in results:
            _case(suite, f"{provider}.{op}", result)
    _skipped(root, document)
    _controls(root, document)
    _ledger(root, document)
    _run(root, document)
    for suite in root:
        _count(suite)
    _count(root)
    root.set("time", f"{document.seconds:.3f}")
    _make_legal(root)
    Xml.indent(root)
    return Xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: Xml.Element, classname: str, result: CaseResult) -> None:
    case = _testcase(suite, classname, result.case, result.seconds)
    if result.excused:
        issues = sorted({f.known for f in result.findings})
        _child(case, "skipped", f"known failure: {', '.join(issues)}")
    elif result.verdict == "fail":
        new = [f for f in result.findings if not f.known]
        for finding in new:
            _child(case, "failure", finding_words(finding), finding.replay, finding.statistic)
        if not new:
            _child(case, "failure", result.note or "failed")
    elif result.verdict == "error":
        _child(case, "error", result.note or "error", kind="error")
    elif result.verdict == "undecided":
        _child(case, "error", result.note or "undecided", kind="undecided")


def _skipped(root: Xml.Element, document: Document) -> None:
    if document.skipped:
        suite = Xml.SubElement(root, "testsuite", name="skipped providers")
        for name, reason in document.skipped.items():
            _child(_testcase(suite, "skipped", name), "skipped", reason)


def _controls(root: Xml.Element, document: Document) -> None:
    if document.controls:
        suite = Xml.SubElement(root, "testsuite", name="negative controls")
        for control in document.controls:
            case = _testcase(suite, str(control["provider"]), str(control["op"]))
            if not control["flagged"]:
                _child(case, "error", "not flagged, although it must be", kind="undecided")


def _ledger(root: Xml.Element, document: Document) -> None:
    if document.ledger:
        suite = Xml.SubElement(root, "testsuite", name="ledger")
        for record in document.ledger:
            case = _testcase(suite, "ledger", str(record["entry"]))
            if record["state"] in ("expired", "fixed"):
                _child(case, "failure", str(record["message"]), kind=str(record["state"]))


def _run(root: Xml.Element, document: Document) -> None:
    """A testcase for the run as a whole, where its verdict does not follow from one case."""
    suite = Xml.SubElement(root, "testsuite", name="run")
    case = _testcase(suite, "lockstep", "verdict")
    if document.verdict == "undecided":
        _child(case, "error", "; ".join(document.notes) or "undecided", kind="undecided")


def _testcase(suite: Xml.Element, classname: str, name: str, seconds: float = 0.0) -> Xml.Element:
    return Xml.SubElement(suite, "testcase", classname=classname, name=name, time=f"{seconds:.3f}")


def _child(case: Xml.Element, tag: str, message: str, text: str = "", kind: str = "") -> None:
    child = Xml.SubElement(case, tag, message=message)
    if kind:
        child.set("type", kind)
    if text:
        child.text = text


def _count(element: Xml.Element) -> None:
    """Testcases, not findings: readers of JUnit expect no more failures than tests."""
    cases = element.findall(".//testcase")
    element.set("tests", str(len(cases)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(attribute, str(sum(case.find(tag) is not None for case in cases)))


def _make_legal(root: Xml.Element) -> None:
    """Replace characters that XML cannot hold; a kernel may print anything."""
    for element in root.iter():
        element.text = element.text and ILLEGAL.sub("\ufffd", element.text)
        for name, value in element.attrib.items():
            element.set(name, ILLEGAL.sub("\ufffd", value))

"""Stands for compute-sanitizer in tests: runs the program, and writes a log as told.

FAKE_SANITIZER is JSON: ``planted`` (tools that report their planted fault), ``report`` (tool -> a word of the
case and the kernel reported), ``do`` (``hang``, ``die``, ``silence`` or ``trouble``).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, os.environ["FAKE_ROOT"])
from tests.validation.sanitize.outputs import report


def main(words: list[str]) -> int:
    if words == ["--version"]:
        print("NVIDIA (R) Compute Sanitizer\nVersion 2025.3.1.0 (build 1) (fake)")
        return 0
    asked = json.loads(os.environ["FAKE_SANITIZER"])
    options, program = words[: words.index(sys.executable)], words[words.index(sys.executable) :]
    tool, log = options[options.index("--tool") + 1], Path(options[options.index("--log-file") + 1])
    job = json.loads(Path(program[-1]).read_text())
    if asked.get("do") == "hang" and not job["planted"]:
        subprocess.Popen(["sleep", "1000"])  # a child that must not outlive the tool
        time.sleep(1000)
    text = "========= COMPUTE-SANITIZER\n"
    if job["planted"]:
        Path(job["answers"]).write_text(
            json.dumps({"case": job["planted"], "kernels": [job["planted"]]}) + "\n"
        )
        found = [report(tool, job["planted"])] if tool in asked["planted"] else []
    else:
        subprocess.run(program, check=False)
        if asked.get("do") == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        found = _reports(tool, asked.get("report", {}), Path(job["answers"]))
    if asked.get("do") == "trouble":
        text += "========= Internal Sanitizer Error: didn't track the launch. Errors might go undetected.\n"
    text += "".join(found)
    if asked.get("do") != "silence":
        text += f"========= ERROR SUMMARY: {len(found)} errors\n"
    log.write_text(text)
    return 86 if found else 0


def _reports(tool: str, rules: dict[str, list[str]], answers: Path) -> list[str]:
    """A report for every case of the process that a rule names and that launched the kernel."""
    if tool not in rules:
        return []
    word, kernel = rules[tool]
    ran = [json.loads(line) for line in answers.read_text().splitlines()]
    return [report(tool, kernel) for a in ran if word in a["case"] and kernel in a["kernels"]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

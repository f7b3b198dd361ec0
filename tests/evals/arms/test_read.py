"""Arms files: what is read, and one line for each thing that is wrong."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from evals.arms.command import server_command
from evals.arms.config import sampled_settings, with_repeats, with_tasks
from evals.arms.read import READY, VARIABLE, check, read_arms, ready_files
from validation.errors import UserError

GOOD = """
factor = "additional_config.decode_backend"
implies = ["cudagraph_mode"]
alpha = 0.05
[common]
model = "${MODEL:-tiny}"
engine = "vllm"
[common.engine_args]
enforce_eager = false
tensor_parallel_size = 8
[arms.reference]
additional_config = { decode_backend = "auto" }
[arms.candidate]
additional_config = { decode_backend = "latency_specialized" }
[tasks.aime25]
repeats = 4
max_tokens = 64
margin = 2.0
margin_reason = "less than one question"
[forced]
tokens = 1000
margin = 0.01
margin_reason = "below what readers notice"
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "arms.toml"
    path.write_text(text)
    return path


def test_both_arms_get_the_common_settings_and_their_own(tmp_path: Path) -> None:
    read = read_arms(written(tmp_path, GOOD), {"MODEL": "k3"})
    assert [arm.model for arm in read.arms] == ["k3", "k3"]
    assert read.candidate.additional_config == {"decode_backend": "latency_specialized"}
    assert read.reference.engine_args == {"enforce_eager": False, "tensor_parallel_size": 8}
    assert read.tasks["aime25"].sampling.max_tokens == 64
    assert read.forced is not None
    assert read.forced.length == 200
    assert read_arms(written(tmp_path, GOOD), {}).reference.model == "tiny"


WRONG = {
    "unknown_key": ("repeats = 4", "repeat = 4", "tasks.aime25: unknown key 'repeat'; did you mean"),
    "unknown_top": ("alpha = 0.05", "alhpa = 0.05", "unknown key 'alhpa'; did you mean 'alpha'"),
    "unknown_arm_key": ('model = "$', 'modle = "$', "unknown key 'modle'; did you mean 'model'"),
    "unknown_arm": ("[arms.candidate]", "[arms.other]", "unknown arm 'other'; the arms are called"),
    "engine": ('engine = "vllm"', 'engine = "vlm"', "must be one of .* not 'vlm'; did you mean 'vllm'"),
    "type": ("repeats = 4", 'repeats = "4"', "repeats must be an integer, not '4'"),
    "bool_is_no_int": ("repeats = 4", "repeats = true", "repeats must be an integer, not True"),
    "bool_is_no_float": ("alpha = 0.05", "alpha = true", "alpha must be a number, not True"),
    "list": ('implies = ["c', 'implies = [1, "c', r"implies\[0\] must be text in quotes, not 1"),
    "missing": ("max_tokens = 64", "", "the key 'max_tokens' is missing; it needs an integer"),
    "k_0": ("repeats = 4", "repeats = 0", r"repeats \(K\) must be at least 1, not 0"),
    "greedy_repeats": ("repeats = 4", "repeats = 4\ntemperature = 0", "4 repeats at temperature 0"),
    "top_p": ("repeats = 4", "repeats = 4\ntop_p = 0.0", "top_p must lie above 0"),
    "margin_0": ("margin = 2.0", "margin = 0", "margin must be more than 0 points of 100, not 0"),
    "margin_nan": ("margin = 2.0", "margin = nan", "must be a finite number, not nan"),
    "forced_margin": ("margin = 0.01", "margin = -1", "margin must be more than 0 nats per token, not -1"),
    "reason": ('"less than one question"', '"ok"', "margin_reason must say in words why 2 points"),
    "alpha": ("alpha = 0.05", "alpha = 1.5", "alpha must lie between 0 and 0.5, not 1.5"),
    "alpha_0": ("alpha = 0.05", "alpha = 0", "alpha must lie between 0 and 0.5, not 0"),
    "no_toml": ("[common]", "[common", "is not valid TOML"),
    "no_variable": ("${MODEL:-tiny}", "${MODEL}", "common: model needs the environment variable MODEL"),
    "no_factor": ('factor = "additional_config.decode_backend"', "", "the key 'factor' is missing"),
    "other_factor": ("config.decode_backend", "config.decode_backnd", "not a setting .* did you mean"),
    "second": ("latency_specialized\" }", 'latency_specialized" }\nengine_args = { enforce_eager = true }',
               r"differ in engine_args.enforce_eager \(reference False, candidate True\)"),
    "only_one_sets": ("latency_specialized\" }", 'latency_specialized" }\nenvironment = { A = "1" }',
                      r"differ in environment.A \(reference not set, candidate '1'\)"),
    "equal": ("latency_specialized\" }", 'auto" }', "do not differ in the factor .* factor = \"none\""),
    "factor_none": ("additional_config.decode_backend\"", 'none"', "arms differ in additional_config"),
    "implied_devices": ('"cudagraph_mode"', '"device_count"', "implies may not contain 'device_count'"),
    "implied_all": ('"cudagraph_mode"', '"*"', r"implies may not contain '\*'"),
    "implied_prompts": ('"cudagraph_mode"', '"prompts"', "implies may not contain 'prompts'"),
    "concurrency": ('engine = "vllm"', 'engine = "vllm"\nconcurrency = 0', "concurrency must be at least 1"),
    "url": ('engine = "vllm"', 'engine = "openai"', "needs server.url = \"http://HOST:PORT\", not ''"),
    "port": ("[common.engine_args]", '[common.server]\ncommand = ["v"]\n[common.engine_args]',
             "must contain {port}"),
    "arguments": ("[common.engine_args]", '[common.server]\ncommand = ["v", "{port}"]\n[common.engine_args]',
                  'lacks the element "{arguments}"'),
    "forced_length": ("tokens = 1000", "tokens = 10", r"length \(200\) is more than tokens \(10\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, name: str) -> None:
    old, new, message = WRONG[name]
    assert old in GOOD
    with pytest.raises(UserError, match=message) as caught:
        read_arms(written(tmp_path, GOOD.replace(old, new)), {})
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_names_the_ready_ones() -> None:
    with pytest.raises(UserError, match=r"no arms file nothing.toml; .*ready one: .*offline"):
        read_arms("nothing.toml")


def test_missing_arm_is_said(tmp_path: Path) -> None:
    text = GOOD.split("[arms.candidate]")[0]
    with pytest.raises(UserError, match=r"there is no table \[arms.candidate\]"):
        read_arms(written(tmp_path, text), {})


def test_an_arm_is_compared_with_itself_only_when_said(tmp_path: Path) -> None:
    text = GOOD.replace("latency_specialized", "auto").replace("additional_config.decode_backend", "none")
    assert read_arms(written(tmp_path, text), {}).factor == "none"


def test_devices_may_follow_from_a_factor_that_is_the_parallelism(tmp_path: Path) -> None:
    text = GOOD.replace("additional_config.decode_backend", "engine_args.tensor_parallel_size")
    text = text.replace('latency_specialized" }', 'auto" }\nengine_args = { tensor_parallel_size = 16 }')
    assert read_arms(written(tmp_path, text.replace('"cudagraph_mode"', '"device_count"')), {}).factor
    with pytest.raises(UserError, match="may not contain 'weights_hash'"):
        read_arms(written(tmp_path, text.replace('"cudagraph_mode"', '"weights_hash"')), {})


def test_the_hash_follows_what_is_sampled_and_nothing_else(tmp_path: Path) -> None:
    base = read_arms(written(tmp_path, GOOD), {})
    same = [
        with_repeats(base, 32),
        replace(base, alpha=0.01, name="other"),
        replace(base, reference=replace(base.reference, label="stock", request_timeout=5.0)),
    ]
    assert {each.configuration_hash for each in same} == {base.configuration_hash}
    for old, new in (("max_tokens = 64", "max_tokens = 65"), ("8\n", "16\n"), ("alpha", "seed = 1\nalpha"),
                     ('"auto"', '"stock"')):  # fmt: skip
        other = read_arms(written(tmp_path, GOOD.replace(old, new)), {})
        assert other.configuration_hash != base.configuration_hash, new
        assert sampled_settings(other) != sampled_settings(base)
    assert list(with_tasks(base, ("aime25",)).tasks) == ["aime25"]


def test_engine_arguments_become_flags(tmp_path: Path) -> None:
    text = GOOD.replace("[common.engine_args]", "[common.engine_args]\ncompilation_config = {mode = 0}\n"
                        "enable_log_requests = true\ncudagraph_capture_sizes = [1, 2]")  # fmt: skip
    arm = read_arms(written(tmp_path, text), {}).candidate
    words = server_command(replace(arm, server=replace(arm.server, python="py")), 81)
    assert words[:3] == ["py", "-m", "vllm.entrypoints.openai.api_server"]
    assert " ".join(words[3:]) == (
        '--model tiny --host 127.0.0.1 --port 81 --compilation-config {"mode": 0} --enable-log-requests '
        "--cudagraph-capture-sizes 1 2 --no-enforce-eager --tensor-parallel-size 8 "
        '--additional-config {"decode_backend": "latency_specialized"}'
    )


def variables(path: Path) -> dict[str, str]:
    return {name: f"/somewhere/{name}" for name, _ in VARIABLE.findall(path.read_text())}


@pytest.mark.parametrize("name", [path.stem for path in READY.glob("*.toml")])
def test_every_ready_file_is_valid(name: str) -> None:
    read = read_arms(name, variables(ready_files()[name]))
    check(read)
    assert {"aime25", "gpqa_diamond", "mrcr"} == {*read.tasks}
    assert read.forced is not None
    if read.reference.engine == "vllm":
        assert any("--port" in word for word in server_command(read.reference, 1))
        missing = sorted(variables(ready_files()[name]))[0]
        with pytest.raises(
            UserError, match=r"needs the environment variable LOCKSTEP_\w+, which is not set"
        ) as caught:
            read_arms(name, {})
        assert re.search(r"LOCKSTEP_\w+", str(caught.value))
        assert missing.startswith("LOCKSTEP_")


@pytest.mark.parametrize("tp", [8, 16])
@pytest.mark.parametrize("speculation", ["", "_dspark"])
def test_gb300_files_meet_what_the_specialised_path_demands(tp: int, speculation: str) -> None:
    """Its configuration-time checks in vLLM 0.33.0, and the recommended sampling."""
    name = f"gb300_tp{tp}{speculation}"
    read = read_arms(name, variables(ready_files()[name]))
    assert [arm.additional_config["decode_backend"] for arm in read.arms] == ["auto", "latency_specialized"]
    arm = read.candidate
    args = arm.engine_args
    assert (args["tensor_parallel_size"], args["pipeline_parallel_size"]) == (tp, 1)
    assert not args["enable_expert_parallel"]
    assert args["decode_context_parallel_size"] in (1, tp)
    assert args["compilation_config"]["cudagraph_mode"] in ("FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
    assert (args["mamba_cache_dtype"], args["mamba_ssm_cache_dtype"]) == ("bfloat16", "float32")
    assert arm.environment["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    assert not {"enable_lora", "enable_sleep_mode", "enable_dbo", "use_replayssm"} & {*args}
    drafts = args["speculative_config"]["num_speculative_tokens"] if speculation else 0
    assert drafts <= 7
    assert args["max_num_seqs"] * (1 + drafts) <= 64
    if speculation:
        assert args["speculative_config"]["method"] == "dspark"
        assert not args["speculative_config"]["enable_adaptive_verification"]
    tasks = read.tasks
    assert (tasks["aime25"].repeats, tasks["aime25"].max_tokens, tasks["gpqa_diamond"].repeats) == (
        32,
        98304,
        8,
    )
    assert all((t.temperature, t.top_p) == (1.0, 0.95) for t in tasks.values())
    assert arm.chat_template_kwargs["thinking"]

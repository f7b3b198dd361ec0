"""The Python files of a released vLLM, run one by one without vLLM; ``vllm_triton`` builds on it."""

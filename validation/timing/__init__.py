"""How long kernels take: replays of CUDA graphs against the memory bandwidth measured in the same run."""

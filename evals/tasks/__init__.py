"""lm-eval tasks: prompts, sampling and results of AIME25, GPQA-Diamond and MRCR (see README.md)."""

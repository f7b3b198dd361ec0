"""The latent mixture of experts, kernel by kernel, and the chain for one or two tokens."""

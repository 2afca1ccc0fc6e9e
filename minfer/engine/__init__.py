"""What a model does: the transformer forward, KV cache, sampling and generation over a backend."""

"""The host backend: the forward on the CPU, straight from quantized blocks, compiled by numba."""

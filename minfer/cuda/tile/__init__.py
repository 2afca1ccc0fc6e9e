"""The wmma-equivalent floor: fragments and their maps, shared-memory tiles, staging, pipelines, schedulers.

Written with `minfer.cuda.ptx` in plain Python, so that it is simulated as it is. `maps` and `shared` need no
numba.
"""

"""The wmma-equivalent floor: what kernels are written with, above single instructions.

    maps         which lane holds which element of a fragment; pure Python
    fragments    load_matrix_sync, mma_sync, fill_fragment, store_matrix_sync on local arrays
    shared       shared-memory tiles as values: size, padding or swizzle, address function; pure Python
    staging      k-tiles through a cp.async ring: f16 as it is, f32 through a mirror
    quantized    k-tiles of quantized blocks, dequantized through registers
    epilogue     accumulators to a ragged matrix
    activation   silu(gate) * up on accumulators
    hopper       rings of TMA stages with mbarriers, stmatrix and TMA-store epilogue
    transposed   epilogues of products whose accumulators are transposed
    scheduler    the order of tiles of persistent blocks

Written with `minfer.cuda.ptx` in plain Python, so that it is simulated as it is. Operations are device
functions made by factories for their compile-time constants; a kernel's factory calls them and closes over
the result.
"""

"""The kernels, and the floors they stand on.

What a kernel is written with:
    kernel, signature     what a factory makes of a config; configs and launches that are refused
    instruction, device_function, unroll   the seam with numba
    ptx                   one PTX instruction, one function
    tile                  fragments, shared-memory tiles, pipelines, epilogues, schedules
    blocks, block_dots, q8, dependent, checks   what several kernels share

What runs and examines it:
    runtime, finalize, sources   compile, cache, launch, check, capture on a GPU
    simulator, trace             run the same source in plain Python; what every lane did
    registry, precompile, report every config that minfer ships, and what it uses (`minfer kernels`)
    reference                    what kernels must give, in NumPy

The kernels:
    gemm, gemm_hopper     f16 products: mma.sync from sm_80 on; wgmma and TMA on sm_90
    mmq, w4a16, w4a8      products straight from quantized blocks: int8 tensor cores; wgmma, f16 and int8
    gemv, token           one token: products straight from blocks; a whole step in one kernel
    attention             prefill, prefill on Hopper, decode
    elementwise, convert, quantize, dequantize   what lies between
    memory, clock         how fast memory is read; what clock the multiprocessors ran at
    placement             which multiprocessors lie together
"""

from minfer.cuda import sources as sources  # notes the files' dates before any other is imported

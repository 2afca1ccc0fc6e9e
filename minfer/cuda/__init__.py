"""The kernels, and the floors they stand on: ptx, tile, runtime, simulator, trace."""

from minfer.cuda import sources as sources  # notes the files' dates before any other is imported

"""The kernels, and the floors they stand on: ptx, tile, runtime, simulator, trace."""

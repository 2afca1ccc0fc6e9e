"""The cuda backend: the forward on minfer's kernels."""

"""Block formats of quantized tensors: layout, dequantization, packing."""

"""What a model is: a GGUF file read into a configuration, tensors, a tokenizer and a chat template."""

# make test-gpu   the GPU tests; needs an NVIDIA GPU (compute capability 8.0 or newer) and driver 580 or newer
#
# Writes a summary record to data/records/<device>/: commit it with the code that it tested. MINFER_COMMIT names
# the commit where there is no git.

.PHONY: test-gpu

test-gpu: $(TEST_SETUP)
	$(BIN)/python -m pytest tests/gpu $(PYTEST_ARGS)

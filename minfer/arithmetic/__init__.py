"""Pure numbers, no GPU: devices, occupancy, bank conflicts, ledgers, work of a model, roofline."""

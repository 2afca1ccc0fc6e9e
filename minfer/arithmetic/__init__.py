"""Pure numbers, no GPU: devices, occupancy, bank conflicts, ledgers, roofline."""

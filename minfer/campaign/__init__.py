"""Probes, gates, interleaved A/B, wall decomposition and records."""

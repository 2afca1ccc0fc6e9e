"""Probes of what came after the seeds, declared as data: a module a kernel of the engine."""

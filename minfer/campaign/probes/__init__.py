"""The seeds' probes, declared as data: a module a campaign session, in their order."""

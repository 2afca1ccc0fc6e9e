"""A decomposition to test with: the seed's shares on a wall of 100 ms."""

from __future__ import annotations

from dataclasses import replace

from minfer.campaign.record import Environment, Telemetry
from minfer.campaign.wall_record import Bucket, Wall

SHARES = {"gate+up": 37.8, "down": 27.5, "o": 3.5, "q+k+v": 5.2, "FA": 7.2, "convert": 6.0, "swiglu": 5.6}
GMAC = {"gate+up": 7000.0, "down": 3500.0, "o": 700.0, "q+k+v": 900.0}


def example_wall(**changes) -> Wall:
    """With whatever is to be different."""
    buckets = [
        Bucket(
            name=name,
            ms=share,
            launches=27,
            gmac=GMAC.get(name, 0.0),
            nbytes=1e9,
            weight_bits=16.0 if name in GMAC else 0.0,
            kernels={f"{name} kernel": share},
        )
        for name, share in SHARES.items()
    ]
    environment = Environment(
        arch="sm_121a",
        cuda="13.0",
        python="3.12",
        sms=48,
        l2_bytes=1 << 24,
        memory_bytes=1 << 37,
        versions={},
    )
    fields = {
        "file": "wall.json",
        "date": "2026-09-03T12:00:00+00:00",
        "commit": "abc",
        "device": "NVIDIA GB10",
        "driver": "580",
        "phase": "prefill",
        "model": "7b.gguf",
        "tokens": 2000,
        "context": 0,
        "route": "f16",
        "settings": {"q_share": 0.75},
        "source": "a test",
        "environment": environment,
        "telemetry": Telemetry(source="none", samples=0, sm_mhz=[], power_w=[], temperature_c=[], limits=[]),
        "wall_ms": [99.0, 100.0, 101.0],
        "buckets": buckets,
        "gap_ms": 100.0 - sum(SHARES.values()),
        "ceilings": {"copy_gb_s": 4000.0, "read_gb_s": 4000.0, "f16_tops": 1000.0},
        "notes": ["a note"],
    }
    return Wall(**(fields | changes))


F16 = replace(example_wall(), device="NVIDIA H200")
RAW = replace(
    F16,
    route="mmq_raw",
    wall_ms=[50.0],
    gap_ms=F16.gap_ms / 2,
    buckets=[
        replace(b, ms=b.ms / 2, kernels={"k": b.ms / 2}, weight_bits=4.5 if b.gmac else 0.0)
        for b in F16.buckets
    ],
)
"""Two walls of an H200: the second, of raw bytes, takes half the time."""

"""What every lane of a simulated launch did, and what can be read from it.

trace = Trace()
simulator.launch(kernel, grid, *arrays, trace=trace)
shared_lines(trace)   # bank conflicts per source line
global_lines(trace)   # sectors per source line
check(trace)          # races, reads before landing, uninitialised reads, missing proxy fences
trace.save("gemm")    # gemm.npz and gemm.json
"""

from minfer.cuda.trace.files import TraceFileError
from minfer.cuda.trace.finding import Finding
from minfer.cuda.trace.layout import LaunchInfo, Place, TracedArray
from minfer.cuda.trace.ops import Op
from minfer.cuda.trace.races import check, faulty_rows
from minfer.cuda.trace.recorder import Trace
from minfer.cuda.trace.requests import (
    GlobalLine,
    Request,
    SharedLine,
    bank_request,
    global_lines,
    requests,
    shared_lines,
)

__all__ = [
    "Finding",
    "GlobalLine",
    "LaunchInfo",
    "Op",
    "Place",
    "Request",
    "SharedLine",
    "Trace",
    "TraceFileError",
    "TracedArray",
    "bank_request",
    "check",
    "faulty_rows",
    "global_lines",
    "requests",
    "shared_lines",
]

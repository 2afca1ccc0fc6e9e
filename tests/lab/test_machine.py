"""The machine table."""

from __future__ import annotations

from minfer.lab import machine
from minfer.lab.machine import GIB, Machine, this_machine


def test_this_machine_has_what_every_machine_has():
    here = this_machine()
    assert here.cpus >= 1
    assert here.memory_bytes > here.memory_free_bytes > 0
    assert (here.gpu is None) == (here.no_gpu is not None)
    assert [what for what, _ in here.rows()] == ["GPU", "CPU", "memory", "Python"]


def test_a_machine_without_gpu_says_why():
    table = Machine("x86", 2, 8 * GIB, 4 * GIB, None, "no <driver>", "3.11.7")
    assert table.rows()[0] == ("GPU", "none: no <driver>")
    assert table.rows()[2] == ("memory", "8.0 GiB, 4.0 GiB free")
    assert "no &lt;driver&gt;" in table._repr_html_()


def test_reading_linux_tables():
    assert machine._cpu_name("processor : 0\nmodel name\t: Some CPU @ 2 GHz\n") == "Some CPU @ 2 GHz"
    assert machine._cpu_name("processor : 0\n") == machine.platform.machine()
    assert machine._memory("MemTotal:  100 kB\nHugePages_Total: 0\n") == {"MemTotal": 102_400}

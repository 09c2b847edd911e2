"""Random system calls from many processes: children may die, the kernel goes on."""
import os
import random
import subprocess

import pytest

import weirvm
from conftest import HERE, OUT, SOAK, assert_no_trouble, machine, script

ROUNDS = 400 if SOAK else 20


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    os.makedirs(OUT, exist_ok=True)
    path = os.path.join(OUT, "random_calls")
    subprocess.run(["gcc", "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-result",
                    "-Wno-nonnull", "-o", path, os.path.join(HERE, "programs", "random_calls.c")], check=True)
    return path


@pytest.mark.parametrize("smp", [1, 4])
def test_kernel_survives_random_system_calls(smp, program, tmp_path):
    seed = random.randrange(1 << 30) if SOAK else 4711 + smp
    image = str(tmp_path / "root.img")
    script("image", "--app", program, "--size", "256M", "-o", image, "--", seed, ROUNDS, 300)
    with weirvm.Vm(machine(smp=smp, image=image), console_path=str(tmp_path / "console")) as vm:
        status = vm.wait_exit(1800)
        assert status == 0, f"seed {seed}: status {status}\n{vm.tail()}"
        assert any("random calls: " in line for line in vm.lines), vm.tail()
        assert_no_trouble(vm)

"""What must survive: the death of one backend, and the loss of power under load."""
import os
import random
import subprocess
import time

import pytest

import weirvm
from conftest import SOAK, SUPERVISOR_PORT, assert_balanced, check_file_system, copy_disk, machine
from write_log import crash_image, logged_disk

BOOT_S = 300
CUTS = 100 if SOAK else 10
CRASHES = 50 if SOAK else 4
WRITERS = 4


def send_signal(vm, pid, signal):
    """Through the supervisor in the guest."""
    done = vm.client(["bash", "-c", f"exec 3<>/dev/tcp/{vm.network.guest}/{SUPERVISOR_PORT}; "
                                    f"echo '{pid} {signal}' >&3; read -r answer <&3; echo \"$answer\""],
                     timeout=60, capture_output=True)
    assert done.stdout.strip() == "0", f"signal {signal} to {pid}: {done.stdout} {done.stderr}"


@pytest.mark.parametrize("smp", [1, 8])
def test_server_recovers_from_a_killed_backend(smp, supervised_image, tmp_path):
    image = copy_disk(supervised_image, tmp_path)
    config = machine(smp=smp, mem="2G", image=image)
    with weirvm.Vm(config, console_path=tmp_path / "console") as vm:
        vm.wait_postgres(BOOT_S)
        vm.pgbench("-q", "-i", "-s", 1)
        load = vm.start_client([weirvm.postgres_client("pgbench"), "-n", "-c", "4", "-j", "1", "-T", "120"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        victim, deadline = "", time.monotonic() + 60
        while not victim and time.monotonic() < deadline:
            victim = vm.sql("select min(pid) from pg_stat_activity where application_name = 'pgbench' "
                            "and query like 'UPDATE%'")
        assert victim, "no busy backend"
        since = vm.mark()
        send_signal(vm, victim, 9)
        vm.wait_line(r"was terminated by signal 9", 60, since)
        vm.wait_line(r"database system is ready to accept connections", 120, since)
        assert load.wait(120) != 0, "pgbench did not notice that its connections were cut"
        vm.sql("select 1")
        assert_balanced(vm)
        vm.pgbench("-n", "-c", 4, "-t", 10)
        assert vm.shut_down(120) == 0, vm.tail()
    check_file_system(image)


class Writers:
    """psql processes that insert numbers one transaction each, and write down each one that was acknowledged."""

    def __init__(self, vm, directory, first):
        self.files, self.processes = [], []
        for w in range(WRITERS):
            script = os.path.join(directory, f"writer{w}.sql")
            with open(script, "w") as f:
                for n in range(first + w, first + WRITERS * 20000, WRITERS):
                    f.write(f"insert into acknowledged values ({n});\n\\echo {n}\n")
            output = os.path.join(directory, f"writer{w}.out")
            self.files.append(output)
            with open(output, "w") as f:
                self.processes.append(vm.start_client(
                    [weirvm.postgres_client("psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", script],
                    stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.DEVNULL))

    def acknowledged(self):
        numbers = set()
        for path in self.files:
            with open(path) as f:
                numbers |= {int(line) for line in f if line.endswith("\n")}
        return numbers

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()


def check_what_was_acknowledged(vm, acknowledged, cut):
    there = {int(n) for n in vm.sql("select n from acknowledged").split()}
    lost = acknowledged - there
    assert not lost, f"after cut {cut}: {len(lost)} of {len(acknowledged)} acknowledged are lost, such as {min(lost)}"
    assert_balanced(vm)


def load_until_the_cut(vm, directory, first, seconds):
    """tpcb-like load and writers, then no power; the set of acknowledged numbers."""
    load = vm.start_client([weirvm.postgres_client("pgbench"), "-n", "-c", "4", "-T", "600"],
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    writers = Writers(vm, directory, first)
    time.sleep(seconds)
    vm.kill()
    writers.stop()
    load.kill()
    load.wait()
    return writers.acknowledged()


def test_power_cuts_lose_no_acknowledged_transaction(postgres_image, tmp_path):
    image, rng = copy_disk(postgres_image, tmp_path), random.Random(4711)
    acknowledged = set()
    for cut in range(CUTS + 1):
        config = machine(smp=4, mem="1G", image=image)
        with weirvm.Vm(config, console_path=tmp_path / f"console.{cut}") as vm:
            vm.wait_postgres(BOOT_S)
            if cut:
                check_what_was_acknowledged(vm, acknowledged, cut)
            else:
                vm.sql("create table acknowledged (n bigint)")
                vm.pgbench("-q", "-i", "-s", 1)
            if cut == CUTS:
                assert vm.shut_down(120) == 0, vm.tail()
                break
            new = load_until_the_cut(vm, tmp_path, 1 + cut * 1000000, rng.uniform(2, 6))
            assert new, f"cut {cut}: nothing was acknowledged before it"
            acknowledged |= new
        check_file_system(image, repair=True)
    check_file_system(image)


def test_a_lost_device_cache_loses_no_acknowledged_transaction(postgres_image, tmp_path):
    """QEMU's end alone loses nothing that reached the host; here what no flush covers is lost as well, in part."""
    base, image, log = str(tmp_path / "base.img"), copy_disk(postgres_image, tmp_path), str(tmp_path / "log")
    rng = random.Random(4711)
    with weirvm.Vm(machine(smp=4, mem="1G", image=image), console_path=tmp_path / "console.fill") as vm:
        vm.wait_postgres(BOOT_S)
        vm.sql("create table acknowledged (n bigint)")
        vm.pgbench("-q", "-i", "-s", 1)
        assert vm.shut_down(120) == 0, vm.tail()
    copy_disk(image, tmp_path, "base.img")
    moments = []  # (what was acknowledged, end of the log just after)
    with weirvm.Vm(machine(smp=4, mem="1G", image=logged_disk(image, log)), console_path=tmp_path / "console.log") as vm:
        vm.wait_postgres(BOOT_S)
        load = vm.start_client([weirvm.postgres_client("pgbench"), "-n", "-c", "4", "-T", "600"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        writers = Writers(vm, tmp_path, 1)
        while len(moments) < CRASHES:
            time.sleep(rng.uniform(0.5, 1))
            acknowledged = writers.acknowledged()
            moments.append((acknowledged, os.path.getsize(log)))
        writers.stop()
        load.kill()
        load.wait()
        vm.qmp.command("stop")
        vm.kill()
    assert len(moments[-1][0]) > len(moments[0][0]) > 0, "the load did not get on"
    for cut, (acknowledged, end) in enumerate(moments, 1):
        crashed = str(tmp_path / "crashed.img")
        crash_image(base, log, end, crashed, rng)
        check_file_system(crashed, repair=True)
        with weirvm.Vm(machine(smp=4, mem="1G", image=crashed), console_path=tmp_path / f"console.{cut}") as vm:
            vm.wait_postgres(BOOT_S)
            check_what_was_acknowledged(vm, acknowledged, cut)
            assert vm.shut_down(120) == 0, vm.tail()
        check_file_system(crashed)

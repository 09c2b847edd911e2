"""All kinds of work at once, for a while: commits, reads, a connection for each transaction, parallel queries, vacuum,
temporary files, 64 connections that wait, and clients that are cut off in the middle."""
import random
import subprocess
import threading
import time

import weirvm
from conftest import SOAK, assert_balanced, assert_no_trouble, check_file_system, copy_disk, machine

SECONDS = 1800 if SOAK else 40
QUERIES = [  # each by a connection of its own, again and again
    "set max_parallel_workers_per_gather = 2; set min_parallel_table_scan_size = 0; set parallel_setup_cost = 0; "
    "set parallel_tuple_cost = 0; select sum(abalance + aid) from pgbench_accounts",
    "vacuum pgbench_branches, pgbench_tellers",
    "set work_mem = '64kB'; select count(*) from (select * from pgbench_accounts order by filler, aid desc) as sorted",
    "create temporary table t as select * from pgbench_accounts where aid < 20000; create index on t (abalance); "
    "drop table t",
    "copy (select * from pgbench_accounts where aid < 5000) to stdout",
]


class Repeated(threading.Thread):
    """Runs one job after the other until the end; keeps the first failure."""

    def __init__(self, end, job):
        super().__init__(daemon=True)
        self.end, self.job, self.failure, self.times = end, job, None, 0
        self.start()

    def run(self):
        while time.monotonic() < self.end:
            try:
                self.job()
                self.times += 1
            except (weirvm.VmError, subprocess.SubprocessError, AssertionError) as error:
                self.failure = error
                return


def cut_off(vm, rng):
    """A client that is killed while it works: its server process must end by itself."""
    client = vm.start_client([weirvm.postgres_client("pgbench"), "-n", "-S", "-c", "2", "-T", "600"],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(rng.uniform(0.2, 2))
    client.kill()
    client.wait()


def test_all_kinds_of_work_at_once(postgres_image, tmp_path):
    image, rng = copy_disk(postgres_image, tmp_path), random.Random(4711)
    config = machine(smp=48, mem="2G", image=image, disks=[None] * 3, blk_queues=48, net_queues=16,
                     append="irq.vectors=24")
    with weirvm.Vm(config, console_path=tmp_path / "console") as vm:
        vm.wait_postgres(300)
        vm.pgbench("-q", "-i", "-s", 2)
        idle = [vm.start_client([weirvm.postgres_client("psql"), "-X", "-q", "-c", f"select pg_sleep({SECONDS})"],
                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) for _ in range(32)]
        end = time.monotonic() + SECONDS
        jobs = [Repeated(end, lambda q=q: vm.sql(q)) for q in QUERIES]
        jobs.append(Repeated(end, lambda: vm.pgbench("-n", "-c", 6, "-T", 5)))
        jobs.append(Repeated(end, lambda: vm.pgbench("-n", "-S", "-M", "prepared", "-c", 6, "-T", 5)))
        jobs.append(Repeated(end, lambda: vm.pgbench("-n", "-S", "-C", "-c", 2, "-t", 10)))
        jobs.append(Repeated(end, lambda: cut_off(vm, rng)))
        for job in jobs:
            job.join()
            assert not job.failure, job.failure
            assert job.times, "a job never came to its end"
        assert all(client.wait(300) == 0 for client in idle), "a waiting connection was lost"
        vm.sql("vacuum analyze")
        assert_balanced(vm)
        left = "select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
        deadline = time.monotonic() + 120
        while vm.sql(left) != "0":
            assert time.monotonic() < deadline, "server processes whose clients are gone"
            time.sleep(1)
        assert_no_trouble(vm)
        assert vm.shut_down(180) == 0, vm.tail()
    check_file_system(image)

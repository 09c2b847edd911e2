"""pgbench from outside at 1, 8 and 48 CPUs: no errors, consistent balances, a clean end and everything there again.

Four disks with as many queues as CPUs, a NIC with 8 pairs. The tests of a class share one machine, in this order.
"""
import os
import time

import pytest

import weirvm
from conftest import assert_balanced, assert_no_trouble, check_file_system, copy_disk, machine

BOOT_S = 300


class Session:
    def __init__(self, smp, image, directory):
        self.smp, self.directory = smp, directory
        self.image = copy_disk(image, directory)
        self.starts = 0
        self.vm = None

    def start(self):
        self.starts += 1
        config = machine(smp=self.smp, mem="2G", image=self.image, disks=[None] * 3, blk_queues=self.smp,
                         net_queues=8)
        self.vm = weirvm.Vm(config, console_path=os.path.join(self.directory, f"console.{self.starts}"))
        self.vm.start()
        self.vm.wait_postgres(BOOT_S)

    def stop(self):
        if self.vm:
            self.vm.close()
            self.vm = None


@pytest.fixture(scope="class", params=[1, 8, 48], ids=lambda smp: f"smp{smp}")
def session(request, postgres_image, tmp_path_factory):
    session = Session(request.param, postgres_image, str(tmp_path_factory.mktemp(f"smp{request.param}-")))
    try:
        session.start()
        yield session
    finally:
        session.stop()


class TestPgbench:
    def test_initialise(self, session):
        session.vm.pgbench("-q", "-i", "-s", 1, timeout=600)
        assert session.vm.sql("select count(*) from pgbench_accounts") == "100000"

    @pytest.mark.parametrize("clients", [1, 8, 32])
    @pytest.mark.parametrize("protocol", ["simple", "prepared"])
    def test_select_only(self, session, protocol, clients):
        session.vm.pgbench("-n", "-S", "-M", protocol, "-c", clients, "-j", 2 if clients > 1 else 1,
                           "-t", max(10, 320 // clients))
        assert_no_trouble(session.vm)

    @pytest.mark.parametrize("clients", [1, 8, 32])
    @pytest.mark.parametrize("protocol", ["simple", "prepared"])
    def test_tpcb_like(self, session, protocol, clients):
        session.vm.pgbench("-n", "-M", protocol, "-c", clients, "-j", 2 if clients > 1 else 1,
                           "-t", max(4, 64 // clients))
        assert_balanced(session.vm)
        assert_no_trouble(session.vm)

    def test_a_connection_for_each_transaction(self, session):
        session.vm.pgbench("-n", "-S", "-C", "-c", 4, "-j", 2, "-t", 8)
        assert_no_trouble(session.vm)

    def test_parallel_query(self, session):
        plan = session.vm.sql("set max_parallel_workers_per_gather = 2; set min_parallel_table_scan_size = 0; "
                              "set parallel_setup_cost = 0; set parallel_tuple_cost = 0; "
                              "explain (analyze, costs off, timing off) select sum(abalance + aid) from pgbench_accounts")
        assert "Workers Launched: 2" in plan, plan

    def test_autovacuum_works(self, session):
        session.vm.sql("create table churn as select generate_series(1, 3000) as n", "delete from churn where n > 10")
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if session.vm.sql("select autovacuum_count > 0 from pg_stat_user_tables where relname = 'churn'") == "t":
                return
            time.sleep(1)
        pytest.fail("no autovacuum of a table of which most rows were deleted 120 s ago")

    def test_fast_shutdown_and_restart_on_the_same_disks(self, session):
        facts = "select count(*), sum(delta) from pgbench_history"
        before = session.vm.sql(facts)
        assert session.vm.shut_down(180) == 0, session.vm.tail()
        assert any("database system is shut down" in line for line in session.vm.lines), session.vm.tail()
        session.stop()
        check_file_system(session.image)
        session.start()
        assert not any("not properly shut down" in line for line in session.vm.lines), session.vm.tail()
        assert session.vm.sql(facts) == before
        assert_balanced(session.vm)
        session.vm.pgbench("-n", "-c", 8, "-j", 2, "-t", 2)
        assert session.vm.shut_down(180) == 0, session.vm.tail()
        session.stop()
        check_file_system(session.image)


@pytest.mark.parametrize("policy", ["baseline", "drain10"])
def test_postgresql_runs_under_a_policy_to_compare_with(policy, postgres_image, tmp_path):
    """The policy is read back, because an unknown name is a warning and the usual policy."""
    config = machine(smp=4, mem="1G", image=copy_disk(postgres_image, tmp_path), net_queues=4,
                     append=f"sched.policy={policy}")
    with weirvm.Vm(config, console_path=tmp_path / "console") as vm:
        vm.wait_postgres(BOOT_S)
        assert vm.sql("select split_part(pg_read_file('/proc/weir/sched'), chr(10), 1)") == f"policy {policy}"
        vm.pgbench("-q", "-i", "-s", 1, timeout=600)
        vm.pgbench("-n", "-c", 8, "-j", 2, "-t", 4)
        assert_balanced(vm)
        assert_no_trouble(vm)
        assert vm.shut_down(180) == 0, vm.tail()

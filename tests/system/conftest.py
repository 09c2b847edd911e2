"""Fixtures: images built once, a fresh copy of one for each test, machines whose console is kept when a test fails."""
import os
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "scripts", "lib"))
import weirvm  # noqa: E402

SOAK = bool(os.environ.get("WEIR_SOAK"))
OUT = os.path.join(weirvm.BUILD, "system")
SUPERVISOR_PORT = 5433
POSTGRES = ["/usr/lib/postgresql/15/bin/postgres", "-D", "/var/lib/postgresql/15/main"]


def script(name, *args):
    done = subprocess.run([os.path.join(weirvm.ROOT, "scripts", name), *map(str, args)], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, done.args))} left with {done.returncode}:\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="session")
def postgres_image():
    """PostgreSQL with upstream's defaults, autovacuum that does not wait for a minute, nothing filled in."""
    path = os.path.join(OUT, "postgres.img")
    script("image", "--preset", "default", "--set", "autovacuum_naptime = 1s", "-o", path)
    return path


@pytest.fixture(scope="session")
def supervised_image():
    """The same below a first process that sends signals on request (tests/system/programs/supervisor.c)."""
    os.makedirs(OUT, exist_ok=True)
    program = os.path.join(OUT, "supervisor")
    subprocess.run(["gcc", "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program,
                    os.path.join(HERE, "programs", "supervisor.c")], check=True)
    path = os.path.join(OUT, "supervised.img")
    script("image", "--preset", "default", "--add", f"{program}:/usr/bin/supervisor", "-o", path,
           "--", "/usr/bin/supervisor", SUPERVISOR_PORT, *POSTGRES)
    return path


def machine(**options):
    """VmConfig. WEIR_GUEST=linux runs the tests against a Linux guest instead: a test that fails there is wrong."""
    if os.environ.get("WEIR_GUEST") == "linux":
        import linuxguest
        return linuxguest.LinuxConfig(**options)
    return weirvm.VmConfig(**options)


def copy_disk(source, directory, name="root.img"):
    path = os.path.join(directory, name)
    subprocess.run(["cp", "--sparse=always", "--reflink=auto", source, path], check=True)
    return path


def check_file_system(path, repair=False):
    """e2fsck: clean, or with repair, mended as far as it can."""
    done = subprocess.run(["e2fsck", "-fy" if repair else "-fn", path], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    allowed = (0, 1) if repair else (0,)
    assert done.returncode in allowed, f"e2fsck left with {done.returncode}:\n{done.stdout}"
    return done.stdout


def assert_no_trouble(vm):
    trouble = vm.trouble()
    assert not trouble, f"on the console: {trouble}\n{vm.tail()}"


def assert_balanced(vm):
    """Every tpcb-like transaction adds the same delta in four tables."""
    sums = vm.sql("select (select coalesce(sum(abalance), 0) from pgbench_accounts), "
                  "(select coalesce(sum(tbalance), 0) from pgbench_tellers), "
                  "(select coalesce(sum(bbalance), 0) from pgbench_branches), "
                  "(select coalesce(sum(delta), 0) from pgbench_history)").split("|")
    assert len(set(sums)) == 1, f"accounts, tellers, branches, history: {sums}"

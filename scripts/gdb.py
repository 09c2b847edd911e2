"""gdb helper for the running image.

    scripts/run ... (QEMU's options -s, or -gdb tcp::1234)
    gdb -x scripts/gdb.py build/weir.elf -ex 'target remote :1234'

weir-threads          every thread: state, CPU, where it stands
weir-bt TID|NAME      backtrace of a thread that is not running
weir-cpus             every CPU: current thread, run queue in its order, page table, cross calls that it owes
"""
import gdb


def state_name(number):
    for field in gdb.lookup_type("enum thread_state").fields():
        if field.enumval == number:
            return field.name.removeprefix("THREAD_").lower()
    return str(number)


def value(text):
    return gdb.parse_and_eval(text)


def entries(head, type_name, member):
    """Every TYPE on a struct list."""
    kind = gdb.lookup_type("struct " + type_name)
    offset = next(f.bitpos // 8 for f in kind.fields() if f.name == member)
    node = head["next"]
    while node != head.address:
        yield gdb.Value(int(node) - offset).cast(kind.pointer()).dereference()
        node = node["next"]


def threads():
    return entries(value("'sched/thread.c'::all_threads"), "thread", "all_link")


def cpus():
    return [value(f"cpus[{i}]").dereference() for i in range(int(value("'arch/x86_64/cpu.c'::count")))]


def symbol(address):
    block = gdb.execute(f"info symbol {int(address):#x}", to_string=True).strip()
    return f"{int(address):#x}" if block.startswith("No symbol") else block.split(" in section")[0]


def word(address):
    return int(gdb.Value(address).cast(gdb.lookup_type("unsigned long").pointer()).dereference())


def saved_frames(thread, depth=16):
    """Return addresses of a thread that waits in switch_stacks: r15 r14 r13 r12 rbx rbp, then where it returns."""
    rsp = int(thread["rsp"])
    rbp, rip = word(rsp + 40), word(rsp + 48)
    for _ in range(depth):
        yield rip
        if not rbp:
            return
        rip, rbp = word(rbp + 8), word(rbp)


def queued(cpu):
    """Names of the threads that wait in a CPU's run queue, the next one first."""
    rq_type, entity, thread = (gdb.lookup_type("struct " + name) for name in ("run_queue", "policy_entity", "thread"))
    offset = next(f.bitpos // 8 for f in thread.fields() if f.name == "entity")

    def named(e):
        t = gdb.Value(int(e) - offset).cast(thread.pointer()).dereference()
        return f"{t['name'].string()} ({int(t['tid'])})"

    def walk(node):
        return walk(node["left"]) + [named(node.cast(entity.pointer()))] + walk(node["right"]) if int(node) else []

    if not int(cpu["rq"]):
        return []
    policy = cpu["rq"].cast(rq_type.pointer()).dereference()["policy"]
    return ([named(policy["first"])] if int(policy["first"]) else []) + walk(policy["tree"]["root"])


class Threads(gdb.Command):
    def __init__(self):
        super().__init__("weir-threads", gdb.COMMAND_STATUS)

    def invoke(self, argument, from_tty):
        for t in threads():
            running = bool(t["on_cpu"])
            where = "(running)" if running else symbol(next(saved_frames(t)))
            if not running:
                named = [symbol(a) for a in saved_frames(t, 6)]
                where = next((n for n in named if not n.startswith(("arch_switch", "switch_", "schedule"))), where)
            print(f"{int(t['tid']):6} {t['name'].string():16} {state_name(int(t['state']) & 0xff):16} CPU {int(t['cpu']):3} {where}")


class Backtrace(gdb.Command):
    def __init__(self):
        super().__init__("weir-bt", gdb.COMMAND_STACK)

    def invoke(self, argument, from_tty):
        for t in threads():
            if argument in (str(int(t["tid"])), t["name"].string()):
                print(f"{t['name'].string()} (tid {int(t['tid'])})")
                if bool(t["on_cpu"]):
                    print("  runs: use gdb's own `info threads` and `bt`")
                    continue
                for address in saved_frames(t):
                    print("  " + symbol(address))


class Cpus(gdb.Command):
    def __init__(self):
        super().__init__("weir-cpus", gdb.COMMAND_STATUS)

    def invoke(self, argument, from_tty):
        for c in cpus():
            arch = c["arch"].cast(gdb.lookup_type("struct arch_cpu").pointer()).dereference()
            name = c["running"]["name"].string() if int(c["running"]) else "-"
            owed = [i * 64 + b for i in range(4) for b in range(64) if int(arch["incoming"]["bits"][i]) >> b & 1]
            print(f"CPU {int(c['id']):3} APIC {int(c['apic_id']):3} {name:16} irq_depth {int(c['irq_depth'])} "
                  f"need_resched {int(c['need_resched'])} pagetable {int(c['pagetable']):#x}"
                  + f" queue [{', '.join(queued(c))}]"
                  + (f" owes calls to CPUs {owed}" if owed else "")
                  + (f" waits for {int(arch['call_left'])} answers" if int(arch["call_left"]) else ""))


Threads()
Backtrace()
Cpus()

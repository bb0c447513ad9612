"""Hostile programs in the jail, as whoever runs the tests, and as an ordinary user when root does.

Each ends within its time, reaches nothing outside, and leaves nothing behind.
"""

import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import pytest
from jail_parts import BACKENDS, WALL, judging, left_running, run, sandbox, submit

from longstride.rewards.judging import RuleJudge
from longstride.rewards.protocol import NotJudged, Score
from longstride.rewards.sandbox import backends
from longstride.rewards.sandbox.backends import SandboxUnavailable
from longstride.rewards.sandbox.jails import Jail, Jails
from schemas.verification import SandboxConfig

ROOT = Path(__file__).parents[2]
ORDINARY = "LONGSTRIDE_TESTS_AS_ORDINARY_USER"

ESCAPES = {
    "reads /etc/passwd": "open('/etc/passwd').read()",
    "reads the home directory": f"os.listdir({str(Path.home())!r}) or 1/0",
    "reads this repository": f"open({str(ROOT / 'pyproject.toml')!r}).read()",
    "writes beside the root": "open('/mine', 'w').write('x')",
    "writes to /usr": "open('/usr/mine', 'w').write('x')",
    "writes to the interpreter": "open(os.path.join(os.path.dirname(os.__file__), 'm.py'), 'w')",
    "writes to the supervisor": "open('/inside/supervisor.py', 'a').write('#')",
    "writes to a device folder": "open('/dev/mine', 'w').write('x')",
    "creates shared memory": "open('/dev/shm/mine', 'w').write('x')",
    "sees other processes": "os.listdir('/proc/1')",
    "kills a process outside": f"os.kill({os.getpid()}, 0)",
    "reaches another machine": "socket.create_connection(('192.0.2.1', 80), 1)",
    "resolves a name": "socket.getaddrinfo('localhost', 80) and socket.getaddrinfo('pypi.org', 80)",
    "becomes root": "os.setuid(0); os.chroot('/tmp')",
    "mounts": "ctypes.CDLL(None).mount(b't', b'/tmp', b'tmpfs', 0, None) and 1/0",
    "writes with the rights of a new user namespace": (
        "ctypes.CDLL(None).unshare(0x10000000) and 1/0; open('/mine', 'w').write('x')"
    ),
    "traces its supervisor": "ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) and 1/0",
    "raises its limits": "resource.setrlimit(resource.RLIMIT_NPROC, (10**5, 10**5))",
    "finds a variable of ours": "os.environ['LONGSTRIDE_CANARY']",
    "imports what is installed outside": "__import__('pydantic')",
}

FORKS = """
import os, sys, time
children = 0
for _ in range(500):
    try:
        if os.fork() == 0:
            time.sleep(600)
        children += 1
    except OSError:
        break
print(children, flush=True)
time.sleep(600)
"""
DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3):
            os.close(fd)
        time.sleep(600)
    os._exit(0)
os.wait()
print("done", flush=True)
"""
SPAWN = """
import subprocess
subprocess.Popen(["/usr/bin/sleep", "600"], start_new_session=True)
print("done", flush=True)
"""
DEAF = """
import signal, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    try:
        time.sleep(600)
    except BaseException:
        pass
"""
DISK = """
import os
try:
    for number in range(100):
        with open(f"/tmp/f{number}", "wb") as file:
            for _ in range(8):
                file.write(bytes(1 << 18))
except OSError as error:
    print("full", error.errno)
"""


@pytest.fixture(autouse=True)
def canary(monkeypatch):
    monkeypatch.setenv("LONGSTRIDE_CANARY", "secret")


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_escape_works_and_an_ordinary_program_does(backend):
    lines = ["import os, socket, resource, ctypes, sys"]
    for name, attempt in ESCAPES.items():
        lines += ["try:", f"    {attempt}", f"    print('escaped:', {name!r})"]
        lines += ["except BaseException as e:", "    pass"]
    lines += ["open('mine', 'w').write('x'); print(open('mine').read(), input(), sum(range(9)))"]
    config = sandbox(backend, cpu_seconds=5, wall_seconds=5.0)
    (said,), _ = run(config, "\n".join(lines), ["hello"])
    assert said["ended"] == "exited" and said["code"] == 0
    assert said["output"] == "x hello 36\n"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_listener_on_this_machine_is_out_of_reach(backend):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        port = server.getsockname()[1]
        program = f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)"
        (said,), _ = run(sandbox(backend), program)
        assert said["code"] == 1
        with pytest.raises(TimeoutError):
            server.accept()


HOSTILE = {
    "forks without end": (FORKS, {"timeout"}),
    "sleeps": ("import time; time.sleep(600)", {"timeout"}),
    "spins": ("while True: pass", {"timeout"}),
    "ignores every signal": (DEAF, {"timeout"}),
    "closes its output and sleeps": (
        "import os, time; os.close(1); os.close(2); time.sleep(600)", {"timeout"},
    ),
    "forks twice and leaves a daemon": (DAEMON, {"exited"}),
    "leaves a program running": (SPAWN, {"exited"}),
    "writes ten megabytes": ("print('x' * 10_000_000)", {"output"}),
    "writes without end": ("while True: print('x' * 1000)", {"output"}),
    "takes all memory": ("x = bytearray(8 << 30)", {"memory"}),
    "takes memory bit by bit": ("x = []\nwhile True: x.append(bytearray(1 << 24))", {"memory"}),
    "fills the disk": (DISK, {"exited"}),
    "stops itself": ("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", {"timeout"}),
    "kills everybody": ("import os, signal; os.kill(-1, signal.SIGKILL)", {"exited", "gone"}),
    "kills its supervisor": (
        "import os, signal, time; os.kill(os.getppid(), 9); time.sleep(600)", {"gone", "timeout"},
    ),
    "overflows the stack": (
        "import sys; sys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
        {"exited", "memory", "timeout"},
    ),
    "crashes": ("import ctypes; ctypes.string_at(0)", {"exited"}),
}  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_ends_in_time_and_leaves_nothing_running(name, backend):
    program, ends = HOSTILE[name]
    config = sandbox(backend)
    said, seconds = run(config, program)
    assert {one["ended"] for one in said} <= ends, said
    assert seconds < config.wall_seconds + 1.0
    assert left_running(config) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_limit_of_processes_binds_also_when_root_runs_the_tests(backend):
    program = FORKS.replace('time.sleep(600)\n"', "").rsplit("time.sleep(600)", 1)[0]
    (said,), _ = run(sandbox(backend), program)
    assert 5 < int(said["output"].split()[0]) < 24


@pytest.mark.parametrize("backend", BACKENDS)
def test_files_are_bounded_one_by_one_and_together(backend):
    (said,), _ = run(sandbox(backend), DISK)
    assert said["output"] == "full 28\n"
    program = "open('/tmp/big', 'wb').write(bytes(3 << 20))"
    (said,), _ = run(sandbox(backend), program)
    assert said["code"] != 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_one_run_leaves_cannot_reach_the_next(backend):
    program = "import os, time\nprint(input())\nif os.fork() == 0:\n    time.sleep(600)"
    config = sandbox(backend)
    said, seconds = run(config, program, ["a", "b", "c"])
    assert [one["output"] for one in said] == ["a\n", "b\n", "c\n"]
    assert seconds < config.wall_seconds + 1.0
    assert left_running(config) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_a_batch_of_hostile_programs_the_good_one_is_judged_right(backend):
    cases = {"cases": [{"input": "4", "output": "16"}]}
    config = judging(backend, slots=4)
    programs = [HOSTILE[name][0] for name in ("forks without end", "ignores every signal")]
    programs += [HOSTILE["takes all memory"][0], "print(int(input()) ** 2)"]
    begun = time.monotonic()
    with RuleJudge(config) as judge:
        judgments = judge.judge_all([submit(program, **cases) for program in programs])
    assert [isinstance(j, Score) and j.correct for j in judgments] == [False] * 3 + [True]
    assert time.monotonic() - begun < WALL + 6.0
    assert left_running(config.sandbox) == []


def test_jails_that_wait_die_with_a_parent_that_is_killed():
    config = sandbox(warm=2)
    program = (
        "import sys, time\n"
        "from longstride.rewards.sandbox.jails import Jails\n"
        "from schemas.verification import SandboxConfig\n"
        "jails = Jails(SandboxConfig.model_validate_json(sys.argv[1]))\n"
        "jail = jails.take(); time.sleep(1); print('ready', flush=True); time.sleep(600)\n"
    )
    argv = [sys.executable, "-c", program, config.model_dump_json()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout.readline() == b"ready\n"
        assert len(left_running(config, 0)) >= 3
        parent.kill()
        parent.wait()
    assert left_running(config) == []


def test_without_a_sandbox_nothing_is_run_and_nothing_scores(monkeypatch):
    monkeypatch.setattr(backends.shutil, "which", lambda name: None)
    cases = {"cases": [{"input": "", "output": "1"}]}
    with RuleJudge(judging()) as judge:
        judgment = judge.judge(submit("print(1)", **cases))
        assert isinstance(judgment, NotJudged) and judgment.reason == "unavailable"
        assert "install the package bubblewrap or util-linux" in judgment.detail
        with pytest.raises(SandboxUnavailable, match="install the package"):
            judge.prepare([submit("", **cases).prompt])


def test_unshare_stands_in_where_bubblewrap_is_not_installed(monkeypatch):
    monkeypatch.setattr(
        backends.shutil, "which", lambda name: None if name == "bwrap" else f"/usr/bin/{name}"
    )
    assert backends.available("auto") == "unshare"
    with pytest.raises(SandboxUnavailable, match="looked for bwrap"):
        backends.available("bwrap")


def test_a_sandbox_that_cannot_be_built_is_unavailable_with_what_it_said(monkeypatch, tmp_path):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'setting up uid map: Permission denied' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with RuleJudge(judging("bwrap")) as judge:
        cases = {"cases": [{"input": "", "output": "1"}]}
        judgments = judge.judge_all([submit("print(1)", **cases)] * 3)
    assert {judgment.reason for judgment in judgments} == {"unavailable"}
    assert "uid map: Permission denied" in judgments[0].detail


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_jail_that_is_ended_while_it_is_built_leaves_nothing(backend):
    config = sandbox(backend)
    for pause in (0.0, 0.001, 0.002, 0.004, 0.008, 0.016) * 3:
        jail = Jail.start(config)
        time.sleep(pause)
        jail.end()
    assert left_running(config) == []


def test_a_jail_that_died_while_it_waited_is_passed_over():
    with Jails(SandboxConfig(warm=1, wall_seconds=WALL)) as jails:
        jails.prepare()
        deadline = time.monotonic() + 10
        while not jails._waiting and time.monotonic() < deadline:
            time.sleep(0.01)
        jails._waiting[0].greet()
        jails._waiting[0].end()
        jail = jails.take()
        assert jail.alive
        jail.end()


@pytest.mark.skipif(os.geteuid() != 0, reason="these tests are run by an ordinary user already")
def test_all_of_this_holds_for_an_ordinary_user_too():
    # An interpreter in root's home is nothing to others: it is bound to where they may look.
    with tempfile.TemporaryDirectory(prefix="longstride-python-", dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        done = run_as_ordinary_user(Path(directory))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def run_as_ordinary_user(place):
    base = os.path.realpath(sys.base_prefix)
    executable = Path(os.path.realpath(sys.executable)).relative_to(base)
    packages = sysconfig.get_paths()["purelib"]
    tests = [str(ROOT / "tests/rewards/test_sandbox_faults.py")]
    tests += [str(ROOT / "tests/rewards/test_forged_passes.py")]
    script = (
        'mount --bind "$1" "$2" && shift 2 && '
        'exec setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs "$@"'
    )
    argv = ["unshare", "--mount", "sh", "-c", script, "sh", base]
    argv += [str(place), str(place / executable), "-B", "-m", "pytest", "-q", "-x"]
    argv += ["-p", "no:cacheprovider", "--rootdir", str(ROOT), *tests]
    environment = {
        "PATH": os.environ["PATH"], "HOME": "/nonexistent", "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT}:{packages}", ORDINARY: "1", "LD_LIBRARY_PATH": str(place / "lib"),
    }  # fmt: skip
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=500)

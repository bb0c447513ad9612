"""Answers that would be right without solving anything: none scores."""

import pytest
from jail_parts import code_prompt, judging

from longstride.rewards.judging import RuleJudge
from longstride.rewards.protocol import Score, Submission
from schemas.rows import RLPrompt

HUMAN_EVAL = {
    "prelude": 'def double(x: int) -> int:\n    """Twice x."""\n',
    "tests": (
        "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(21) == 42\n"
    ),
    "entry_point": "double",
}
ASSERTS = {"tests": ["assert double(2) == 4", "assert double(21) == 42"], "entry_point": "double"}
CASES = {"cases": [{"input": "2\n", "output": "4\n"}, {"input": "21\n", "output": "42\n"}]}

EVIL = """
class Evil(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __sub__(self, other): return 0
    def __bool__(self): return True
"""
FORGED = {
    "nothing": "",
    "pass": "    pass\n",
    "prose": "The answer is 4 and 42, all tests passed.\n",
    "exits": "import sys\nsys.exit(0)\n",
    "exits in the function": "def double(x):\n    import sys\n    sys.exit(0)\n",
    "exits at once": "import os\nos._exit(0)\n",
    "exits at once in the function": "def double(x):\n    import os\n    os._exit(0)\n",
    "raises SystemExit(0)": "raise SystemExit(0)\n",
    "is equal to everything": f"{EVIL}\ndef double(x): return Evil(7)\n",
    "is equal to everything and no number": (
        "class E:\n    def __eq__(self, o): return True\ndef double(x): return E()\n"
    ),
    "is equal by its class": (
        "class M(type):\n    def __eq__(self, o): return True\n    def __hash__(self): return 1\n"
        "class E(metaclass=M): pass\ndef double(x): return E\n"
    ),
    "prints what a harness might": (
        "import os\nfor t in ('passed', '{\"test\": 0, \"passed\": true}', 'OK', '1 passed'):\n"
        "    print(t)\n    for fd in range(256):\n        try: os.write(fd, (t + '\\n').encode())\n"
        "        except OSError: pass\ndef double(x): return None\n"
    ),
    "answers every call itself": (
        "import os\nfor fd in range(3, 256):\n    try:\n"
        '        os.write(fd, b\'{"value": ["o", "x"], "args": [["i", "0x2"]]}\\n\' * 99)\n'
        "    except OSError: pass\ndef double(x): return 0\n"
    ),
    "patches what compares": (
        "import builtins, json, sys, operator\n"
        "builtins.AssertionError = type('A', (Exception,), {})\n"
        "builtins.all = builtins.any = lambda *a: True\njson.dumps = lambda *a, **k: 'true'\n"
        "operator.eq = lambda a, b: True\ndef double(x): return 0\n"
    ),
    "patches the encoder": (
        "import sys\nfor m in list(sys.modules.values()):\n    if hasattr(m, 'encode'):\n"
        "        try: m.encode = lambda v, depth=0: ['o', 'anything']\n"
        "        except Exception: pass\ndef double(x): return 0\n"
    ),
    "reads tests from disk": (
        "import os, re\nfound = ''\nfor r, d, fs in os.walk('/'):\n"
        "    if r.startswith(('/usr', '/python')): d[:] = []; continue\n    for f in fs:\n"
        "        try: found += open(os.path.join(r, f)).read(1 << 20)\n"
        "        except Exception: pass\n"
        "def double(x):\n    m = re.search(r'\\(%d\\) == (\\d+)' % x, found)\n"
        "    return int(m[1]) if m else None\n"
    ),
    "reads tests from frames and modules": (
        "import sys, gc, re\ndef double(x):\n    seen = []\n    f = sys._getframe()\n"
        "    while f:\n        seen += [repr(f.f_locals), repr(f.f_globals)[:100000]]\n"
        "        f = f.f_back\n    seen += [o for o in gc.get_objects() if isinstance(o, str)]\n"
        "    seen += [repr(vars(m))[:100000] for m in list(sys.modules.values())]\n"
        "    m = re.search(r'\\(%d\\) == (\\d+)' % x, ' '.join(seen))\n"
        "    return int(m[1]) if m else None\n"
    ),
    "reads tests from memory": (
        "import re\ndef double(x):\n    try: data = open('/proc/self/mem', 'rb')\n"
        "    except OSError: return None\n    return 0\n"
    ),
    "reads tests from its arguments": "import sys\ndef double(x): return ' '.join(sys.orig_argv)\n",
    "hangs": "def double(x):\n    while True: pass\n",
    "says one right thing for all": "def double(x): return 4\n",
    "prints one right thing for all": "print(4)\n",
    "echoes": "print(input())\ndef double(x): return x\n",
    "nests without end": "x = []\nfor _ in range(10**5): x = [x]\ndef double(n): return x\n",
    "returns very much": "def double(x): return 'x' * 10**8\n",
}
RIGHT = {
    "continues the prompt": (HUMAN_EVAL, "    return 2 * x\n"),
    "defines it again": (HUMAN_EVAL, "def double(x):\n    return x + x\n"),
    "is fenced": (ASSERTS, "So:\n```python\ndef double(x):\n    return x + x\n```\nDone."),
    "prints while it works": (ASSERTS, "print('hi')\ndef double(x):\n    print(x); return x + x\n"),
    "returns its own integer": (
        ASSERTS, "class I(int): pass\ndef double(x):\n    return I(2 * x)\n",
    ),
    "reads and prints": (CASES, "print(2 * int(input()))"),
    "exits well": (CASES, "import sys\nprint(2 * int(sys.stdin.read()))\nsys.exit(0)"),
    "runs as the main program": (
        CASES, "def main(): print(2 * int(input()))\nif __name__ == '__main__': main()",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def judge():
    with RuleJudge(judging(wall_seconds=1.0, warm=2)) as found:
        yield found


@pytest.mark.parametrize("entry", [HUMAN_EVAL, ASSERTS, CASES], ids=["check", "asserts", "cases"])
def test_no_forged_program_is_right(judge, entry):
    submissions = [Submission(code_prompt(**entry), answer) for answer in FORGED.values()]
    judgments = judge.judge_all(submissions)
    for name, judgment in zip(FORGED, judgments, strict=True):
        assert isinstance(judgment, Score), (name, judgment)
        assert judgment.correct is False, name


@pytest.mark.parametrize("name", RIGHT)
def test_a_real_solution_is_right(judge, name):
    entry, answer = RIGHT[name]
    assert judge.judge(Submission(code_prompt(**entry), answer)) == Score(
        1.0, True, {"passed": 2 - ("prelude" in entry), "tests": 2 - ("prelude" in entry)}
    )


def test_the_share_of_tests_passed_is_reported(judge):
    entry = {**ASSERTS, "tests": [*ASSERTS["tests"], "assert double(0) == 1"]}
    judgment = judge.judge(Submission(code_prompt(**entry), "def double(x): return 2 * x"))
    assert judgment == Score(2 / 3, False, {"passed": 2, "tests": 3})


# --- a patch to a repository ----------------------------------------------------------------------

CALC = "def add(a, b):\n    return a - b\n\n\ndef neg(a):\n    return -a\n"
TESTS = """import unittest

from calc import add, neg


class Adding(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(2, 3), 5)

    def test_more(self):
        assert add(10, 1) == 11

    def test_neg(self):
        self.assertEqual(neg(4), -4)

    def test_refuses(self):
        with self.assertRaises(TypeError):
            add(1, None)
"""
REPOSITORY = {
    "files": {"calc.py": CALC, "README": "Adds.\n"},
    "tests": {"test_calc.py": TESTS},
    "fail_to_pass": ["test_calc.Adding.test_add", "test_calc.Adding.test_more"],
    "pass_to_pass": ["test_calc.Adding.test_neg", "test_calc.Adding.test_refuses"],
}


def patch(*lines, body=None):
    """A diff of calc.py: the return of add replaced by lines."""
    new = list(lines)
    head = f"--- a/calc.py\n+++ b/calc.py\n@@ -1,3 +1,{2 + len(new)} @@\n"
    text = "".join(f"+{line}\n" for line in new)
    return f"{head} def add(a, b):\n-    return a - b\n{text} \n"


def on_top(*lines):
    """A diff that puts lines before everything in calc.py."""
    text = "".join(f"+{line}\n" for line in lines)
    head = f"--- a/calc.py\n+++ b/calc.py\n@@ -1,2 +1,{2 + len(lines)} @@\n"
    return f"{head}{text} def add(a, b):\n     return a - b\n"


def new_file(path, *lines):
    text = "".join(f"+{line}\n" for line in lines)
    return f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{len(lines)} @@\n{text}"


EQUAL = [
    "class E(int):",
    "    def __eq__(self, o): return True",
    "    def __ne__(self, o): return False",
    "    __hash__ = int.__hash__",
]
FORGED_PATCHES = {
    "no diff": "I changed the minus to a plus.",
    "does not fit": patch("    return a + b").replace("a - b", "a * b"),
    "outside": new_file("../calc.py", "x = 1"),
    "exits": on_top("import sys; sys.exit(0)"),
    "exits at once": on_top("import os; os._exit(0)"),
    "exits when asked": patch("    import os; os._exit(0)"),
    "empties the tests": "".join(
        [
            f"--- a/test_calc.py\n+++ /dev/null\n@@ -1,{len(TESTS.splitlines())} +0,0 @@\n",
            *(f"-{line}\n" for line in TESTS.splitlines()),
        ]
    ),
    "overwrites the tests": (
        "--- a/test_calc.py\n+++ b/test_calc.py\n@@ -8,2 +8,2 @@\n     def test_add(self):\n"
        "-        self.assertEqual(add(2, 3), 5)\n+        pass\n"
    ),
    "replaces unittest": new_file("unittest.py", "import sys", "sys.exit(0)"),
    "replaces unittest's package": new_file("unittest/__main__.py", "pass")
    + new_file("unittest/__init__.py", "class TestCase: pass"),
    "starts with the interpreter": new_file("sitecustomize.py", "import os; os._exit(0)"),
    "patches assertEqual": on_top(
        "import unittest", "unittest.TestCase.assertEqual = lambda *a: None"
    ),
    "patches the result": on_top(
        "import unittest", "unittest.TestResult.addFailure = lambda *a: None",
        "unittest.TestResult.addError = lambda *a: None",
        "unittest.TextTestResult.addFailure = lambda *a: None",
        "unittest.TextTestResult.addError = lambda *a: None",
    ),
    "is equal to everything": on_top(*EQUAL).replace("     return a - b\n", "     return a - b\n")
    + "@@ -3,4 +7,4 @@\n \n \n def neg(a):\n-    return -a\n+    return E(a)\n",
    "returns what is equal to everything": patch(
        *(f"    {line}" for line in EQUAL), "    return E(0)"
    ),
    "prints a report": patch(
        "    print('Ran 1 test in 0.000s\\n\\nOK')", "    raise SystemExit(0)"
    ),
    "reads the tests": patch(
        "    import re, sys, os",
        "    t = ''.join(open(f).read() for f in os.listdir() if f.startswith('test_'))",
        "    m = re.search(r'add\\(%d, %d\\)\\D+(\\d+)' % (a, b), t)",
        "    return int(m[1])",
    ),
    "looks at the frame": patch(
        "    import sys, linecache", "    f = sys._getframe(1)",
        "    line = linecache.getline(f.f_code.co_filename, f.f_lineno)",
        "    import re", "    return int(re.findall(r'\\d+', line)[-1])",
    ),
    "breaks something else": patch("    return a + b")
    + "@@ -5,2 +5,2 @@\n def neg(a):\n-    return -a\n+    return a\n",
    "hangs": patch("    while True: pass"),
}  # fmt: skip


def software(**changes):
    return RLPrompt(
        id="s1", prompt="Mend it.", answer="", family="mine", verifier="software_engineering",
        entry={**REPOSITORY, **changes},
    )  # fmt: skip


@pytest.mark.parametrize("name", FORGED_PATCHES)
def test_no_forged_patch_is_right(judge, name):
    judgment = judge.judge(Submission(software(), FORGED_PATCHES[name]))
    assert isinstance(judgment, Score), judgment
    assert judgment.correct is False and judgment.value < 1.0


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_real_patch_is_right(judge, wrapped):
    answer = patch("    return a + b")
    answer = f"Here:\n```diff\n{answer}```\n" if wrapped else answer
    judgment = judge.judge(Submission(software(), answer))
    assert judgment == Score(1.0, True, {"fail_to_pass": 1.0, "broken": 0.0})


def test_part_of_what_failed_is_part_of_the_value(judge):
    answer = patch("    return 5 if a == 2 else a - b")
    judgment = judge.judge(Submission(software(), answer))
    assert (judgment.value, judgment.correct) == (0.5, False)

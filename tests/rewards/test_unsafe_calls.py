"""Nothing outside the jail runs text as code or loads what can run code."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("schemas", "longstride", "components", "pipelines", "benchmarks")
JAIL = ROOT / "longstride" / "rewards" / "sandbox" / "inside"
PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}


def problems(tree):
    """What is unsafe in a module, by line."""
    found = []
    safe = {"yaml.SafeLoader"} | {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and "yaml.SafeLoader" in map(ast.unparse, node.bases)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            module = getattr(node, "module", None) or ""
            if {name.split(".")[0] for name in [*names, module]} & PICKLES:
                found.append((node.lineno, "pickle"))
        if not isinstance(node, ast.Call):
            continue
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        name = ast.unparse(node.func)
        constants = {k: v.value for k, v in keywords.items() if isinstance(v, ast.Constant)}
        if name in ("eval", "exec", "os.system", "os.popen", "__import__"):
            found.append((node.lineno, name))
        if constants.get("shell") is True:
            found.append((node.lineno, "shell=True"))
        if name in ("yaml.full_load", "yaml.unsafe_load") or (
            name == "yaml.load" and not _safe_loader(node, safe)
        ):
            found.append((node.lineno, name))
        if name == "torch.load" and constants.get("weights_only") is not True:
            found.append((node.lineno, "torch.load without weights_only=True"))
        if constants.get("allow_pickle") is True:
            found.append((node.lineno, "allow_pickle"))
    return found


def _safe_loader(node, safe):
    """Whether a yaml.load names SafeLoader or an extension of it in the same module."""
    named = [*node.args[1:2], *(k.value for k in node.keywords if k.arg == "Loader")]
    return any(ast.unparse(value) in safe for value in named)


def sources():
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def test_no_module_outside_the_jail_runs_text_or_unpickles():
    found = {
        str(path.relative_to(ROOT)): bad
        for path in sources()
        if JAIL not in path.parents and (bad := problems(ast.parse(path.read_text("utf-8"))))
    }
    assert found == {}


def test_the_jail_is_where_programs_run_and_nothing_of_ours_imports_it():
    inside = {path.stem for path in JAIL.glob("*.py")} - {"__init__"}
    assert any(problems(ast.parse(path.read_text("utf-8"))) for path in JAIL.glob("*.py"))
    for path in sources():
        if JAIL in path.parents:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("longstride.rewards.sandbox.inside")
                assert node.module not in inside


@pytest.mark.parametrize(
    "line",
    [
        "eval('1')",
        "exec(text)",
        "subprocess.run(x, shell=True)",
        "yaml.load(text)",
        "yaml.load(text, Loader=yaml.Loader)",
        "yaml.load(text, yaml.FullLoader)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "import pickle",
        "from pickle import loads",
        "numpy.load(path, allow_pickle=True)",
        "os.system('ls')",
    ],
)
def test_each_kind_of_unsafe_call_is_seen(line):
    assert problems(ast.parse(line))


@pytest.mark.parametrize(
    "line",
    ["yaml.safe_load(text)", "yaml.load(t, yaml.SafeLoader)", "torch.load(p, weights_only=True)"],
)
def test_the_safe_forms_pass(line):
    assert problems(ast.parse(line)) == []

"""The committed IR is what the recipes compile to, and keeps the rules."""

import re
from pathlib import Path

import pytest
import yaml

from longstride.recipe.loading import load_recipe
from pipelines.compiling import SIZE_BUDGET_BYTES, compile_recipe, lint
from pipelines.refresh import json_schema, shipped_recipes

COMPILED = Path(__file__).parents[2] / "pipelines" / "compiled"
REFRESH = "run `make compile` and commit the result"

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore::FutureWarning")


def without_sdk_version(text):
    return re.sub(r"^sdkVersion:.*$", "", text, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled")
    return {
        path.stem: compile_recipe(load_recipe(path), folder / path.name).read_text()
        for path in shipped_recipes()
    }


@pytest.mark.parametrize("name", [path.stem for path in shipped_recipes()])
def test_the_committed_ir_is_what_the_recipe_compiles_to(name, compiled):
    committed = (COMPILED / f"{name}.yaml").read_text(encoding="utf-8")
    assert without_sdk_version(committed) == without_sdk_version(compiled[name]), REFRESH


@pytest.mark.parametrize("name", [path.stem for path in shipped_recipes()])
def test_the_ir_stays_within_its_size_budget(name, compiled):
    assert len(compiled[name].encode()) < SIZE_BUDGET_BYTES


def test_no_compiled_file_is_left_without_its_recipe():
    assert {p.stem for p in COMPILED.glob("*.yaml")} == {p.stem for p in shipped_recipes()}


def test_the_committed_json_schema_is_current():
    path = Path(__file__).parents[2] / "schemas" / "json" / "recipe.schema.json"
    assert path.read_text(encoding="utf-8") == json_schema(), REFRESH


def documents(text):
    spec, platform = yaml.safe_load_all(text)
    return spec, platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    recipe = load_recipe(
        "tiny",
        ["resources.rl={gpus: 8, retries: 2, cpu: 16, memory: 512Gi, shared_memory: 64Gi, "
         "timeout_seconds: 7200, gpu_type: nvidia.com/gpu, node_selector: {gpu: h100}, "
         "tolerations: [{key: nvidia.com/gpu}], "
         "secrets: [{secret: store, key: token, variable: STORE_TOKEN}]}"],
        [shipped_recipes()[0].parent],
    )  # fmt: skip
    out = tmp_path_factory.mktemp("cluster") / "cluster.yaml"
    return documents(compile_recipe(recipe, out).read_text())


def test_what_a_stage_asks_of_the_cluster_is_in_the_compiled_platform_spec(cluster):
    _, executors = cluster
    settings = executors["exec-policy-round"]
    assert settings["nodeSelector"]["labels"] == {"gpu": "h100"}
    assert settings["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert settings["emptyDirMounts"][0]["mountPath"] == "/dev/shm"
    assert settings["emptyDirMounts"][0]["sizeLimit"] == "64Gi"
    assert int(settings["activeDeadlineSeconds"]) == 7200
    secret = settings["secretAsEnv"][0]
    assert secret["secretName"] == "store"
    assert secret["keyToEnv"][0] == {"envVar": "STORE_TOKEN", "secretKey": "token"}


def test_accelerators_are_in_the_fields_that_old_and_new_backends_read(cluster):
    spec, _ = cluster
    container = spec["deploymentSpec"]["executors"]["exec-policy-round"]["container"]
    accelerator = container["resources"]["accelerator"]
    assert accelerator["resourceCount"] == "8" and accelerator["resourceType"] == "nvidia.com/gpu"
    assert int(accelerator["count"]) == 8 and accelerator["type"] == "nvidia.com/gpu"
    retry = spec["components"]["comp-rl-round"]["dag"]["tasks"]["policy-round"]["retryPolicy"]
    assert retry["maxRetryCount"] == 2


def test_a_quality_gate_stands_between_every_two_training_tasks(compiled):
    """Walk every path of the DAG: two training tasks never touch without a gate before the next."""
    spec, _ = documents(compiled["tiny"])
    for name in ("comp-language-stage", "comp-sft-stage"):
        tasks = spec["components"][name]["dag"]["tasks"]
        assert "quality-gate" in tasks["train-language"]["dependentTasks"]
        checkpoint = tasks["quality-gate-2"]["inputs"]["artifacts"]["subject"]
        assert checkpoint["taskOutputArtifact"]["producerTask"] == "train-language"
    rounds = spec["components"]["comp-rl-round"]["dag"]["tasks"]
    assert "quality-gate" in rounds["expansion-gate"]["dependentTasks"]
    root = spec["components"]["comp-exit-handler-1"]["dag"]["tasks"]
    assert "quality-gate" in root["language-stage"]["dependentTasks"]
    assert "quality-gate-2" in root["rl-round"]["dependentTasks"]


def test_the_recipe_decides_how_many_stages_and_rounds_are_unrolled(tmp_path):
    recipe = load_recipe("tiny", ["rl.rounds=2"], [shipped_recipes()[0].parent])
    spec, _ = documents(compile_recipe(recipe, tmp_path / "two.yaml").read_text())
    tasks = spec["components"]["comp-exit-handler-1"]["dag"]["tasks"]
    assert [name for name in tasks if name.startswith("rl-round")] == ["rl-round", "rl-round-2"]
    assert sum(name.startswith("language-stage") for name in tasks) == 5


BROKEN = {
    "is not pinned by digest": lambda spec: first(spec)["container"].update(image="python:3.11"),
    "installs packages at run time": lambda spec: first(spec)["container"]["command"].append(
        "python3 -m pip install kfp"
    ),
    "no CPU or memory limit": lambda spec: first(spec)["container"].pop("resources"),
    "its default is None": lambda spec: spec["root"]["inputDefinitions"]["parameters"].update(
        p={"isOptional": True, "parameterType": "STRING"}
    ),
    "over the budget": lambda spec: spec.update(padding="x" * SIZE_BUDGET_BYTES),
    "no retry policy": lambda spec: first(spec)["container"]["resources"].update(
        accelerator={"count": "1", "resourceCount": "1"}
    ),
    "older or newer backends": lambda spec: first(spec)["container"]["resources"].update(
        accelerator={"resourceCount": "1"}
    ),
}


def first(spec):
    return next(iter(spec["deploymentSpec"]["executors"].values()))


@pytest.mark.parametrize("problem", BROKEN)
def test_lint_names_each_broken_rule(problem, compiled):
    spec, platform = yaml.safe_load_all(compiled["tiny"])
    assert lint(yaml.safe_dump_all([spec, platform])) == []
    BROKEN[problem](spec)
    assert problem in "\n".join(lint(yaml.safe_dump_all([spec, platform])))


def test_lint_names_a_task_without_a_timeout(compiled):
    spec, _ = yaml.safe_load_all(compiled["tiny"])
    assert "has no timeout" in "\n".join(lint(yaml.safe_dump_all([spec, {}])))

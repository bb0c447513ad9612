import json
from pathlib import Path

import pytest
from example_run import example_run
from kfp import compiler, dsl
from kfp.dsl import Artifact, Input, Metrics, Output
from page_parts import read_page
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from longstride.errors import DataError, PipelineError
from longstride.report import collect, collect_from_root, render_report, write_report
from longstride.report.sampling import pick_rollouts
from longstride.report.vocabulary import token_texts
from longstride.runner import execute, load_ir
from longstride.store.files import write_json, write_jsonl

IMAGE = "example.org/longstride@sha256:" + "0" * 64


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train(metrics: Output[Artifact], scores: Output[Metrics]):
    import os

    os.makedirs(metrics.path)
    with open(os.path.join(metrics.path, "metrics.jsonl"), "w") as stream:
        for step in (1, 2):
            stream.write(f'{{"step": {step}, "name": "train/loss", "value": 2.5, "time": 1}}\n')
        stream.write('{"step": 3, "name": "train/lo')
    scores.log_metric("loss", 2.5)


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def guard(data: Input[Artifact], source: str, verdict: Output[Artifact]):
    import os
    import shutil

    os.makedirs(verdict.path)
    shutil.copy(source, os.path.join(verdict.path, "verdict.json"))
    raise RuntimeError("QualityGateBlocked: loss is too high")


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def after(data: Input[Artifact]):
    print("never")


@dsl.pipeline(name="stage")
def stage(source: str):
    trained = train()
    checked = guard(data=trained.outputs["metrics"], source=source)
    after(data=checked.outputs["verdict"])


@pytest.fixture(scope="module")
def blocked_directory(tmp_path_factory) -> Path:
    """A real run of the embedded executor whose gate blocks."""
    folder = tmp_path_factory.mktemp("collect")
    verdict = example_run().verdicts[0].model_copy(update={"passed": False})
    write_json(folder / "source.json", verdict)
    compiler.Compiler().compile(stage, str(folder / "stage.yaml"))
    execute(load_ir(folder / "stage.yaml"), folder / "run",
            {"source": str(folder / "source.json")})  # fmt: skip
    return folder / "run"


def test_a_blocked_run_is_collected_with_the_verdict_that_its_failed_gate_wrote(blocked_directory):
    record = collect(blocked_directory)
    states = {task.display_name: task.state for task in record.tasks}
    assert record.state == "FAILED"
    assert (states["train"], states["guard"]) == ("SUCCEEDED", "FAILED")
    assert [v.passed for v in record.verdicts] == [False]
    assert record.verdict_tasks[0].endswith("/guard")
    assert "QualityGateBlocked" in read_page(render_report(record)).all("div", "problems")[0].text


def test_metrics_survive_a_line_that_is_still_being_written(blocked_directory):
    (metrics,) = collect(blocked_directory).metrics
    assert [(p.step, p.value) for p in metrics.points] == [(1, 2.5), (2, 2.5)]


def test_a_metadata_only_artifact_is_not_reported_as_missing(blocked_directory):
    assert not [note for note in collect(blocked_directory).notes if "scores" in note]


def test_the_report_is_written_under_its_name_only(blocked_directory, tmp_path):
    written = write_report(blocked_directory, tmp_path / "deep" / "report.html")
    assert read_page(written.read_text(encoding="utf-8")).all("main")
    assert [p.name for p in written.parent.iterdir()] == ["report.html"]


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(PipelineError, match="holds no run"):
        collect(tmp_path)


@pytest.fixture
def root(tmp_path) -> Path:
    run = example_run()
    write_json(tmp_path / "round-1" / "gate" / "verdict" / "verdict.json", run.verdicts[0])
    write_json(tmp_path / "round-1" / "cispo" / "ladder" / "ladder_state.json", run.ladder)
    rollouts = tmp_path / "round-1" / "cispo" / "rollouts"
    write_jsonl(rollouts / "rollouts.jsonl", run.rollouts["round-1"])
    write_json(tmp_path / "bench" / "eval" / "result" / "result.json", run.evaluations[0].result)
    write_json(tmp_path / "setup" / "recipe" / "recipe.json", run.recipe)
    machine = {"machine": {"cores": 2}, "versions": {"python": "3.11"}, "code_digest": "sha256:1"}
    write_json(tmp_path / "setup" / "environment" / "environment.json", machine)
    return tmp_path


def test_an_artifact_root_alone_gives_a_record(root):
    record = collect_from_root(root, "SUCCEEDED")
    run = example_run()
    assert record.verdicts == [run.verdicts[0]]
    assert record.verdict_tasks == ["round-1/gate"]
    assert record.ladder == run.ladder
    assert list(record.rollouts) == ["round-1"]
    assert record.evaluations[0].result == run.evaluations[0].result
    assert (record.machine, record.code_digest) == ({"cores": "2"}, "sha256:1")
    assert record.recipe == run.recipe


@pytest.mark.parametrize("content", ["", "{", "[]", '{"edge": "E9"}', "\udcff"])
def test_a_malformed_artifact_becomes_a_note_that_names_the_file(root, content):
    names = ("verdict.json", "ladder_state.json", "result.json", "recipe.json", "rollouts.jsonl")
    for name in names:
        (path,) = root.rglob(name)
        path.write_bytes(content.encode("utf-8", "surrogateescape") + b"\n")
    record = collect_from_root(root)
    page = read_page(render_report(record))
    for name in names:
        if (name, content) not in {("recipe.json", '{"edge": "E9"}')}:
            assert name in page.all("details", "notes")[0].text
    assert record.verdicts == [] and record.ladder is None


def test_rollouts_up_to_the_broken_line_are_shown(root):
    (path,) = root.rglob("rollouts.jsonl")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:8], lines[8][:50]]) + "\n")
    record = collect_from_root(root)
    assert len(record.rollouts["round-1"]) == 8
    assert any("line 9" in note for note in record.notes)


def test_chosen_groups_are_whole_and_the_same_whatever_the_order_of_rows():
    rows = example_run().rollouts["round-1"]
    chosen = pick_rollouts(rows)
    assert {(r.group, r.sample) for r in chosen} == {(g, s) for g in range(3) for s in range(8)}
    assert pick_rollouts(rows) == chosen


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<think>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    tokenizer.train_from_iterator(["wait, recheck the sum"] * 9, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_token_texts_join_to_what_the_tokenizer_library_decodes(tokenizer_file):
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    ids = tokenizer.encode("<think> wait,\n recheck\t42 = the sum").ids
    texts = token_texts(tokenizer_file, ids)
    joined = "".join(texts[str(i)] for i in ids)
    assert joined == tokenizer.decode(ids, skip_special_tokens=False)


def test_half_of_a_character_shows_as_its_bytes(tokenizer_file):
    ids = Tokenizer.from_file(str(tokenizer_file)).encode("€").ids
    assert [token_texts(tokenizer_file, ids)[str(i)] for i in ids] == ["\\xe2", "\\x82", "\\xac"]


def test_a_tokenizer_without_a_vocabulary_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {}}))
    with pytest.raises(DataError, match=r"no model\.vocab"):
        token_texts(tmp_path / "tokenizer.json", [1])

"""Components that the runner's tests build pipelines from."""

from typing import NamedTuple, Optional

from kfp import dsl
from kfp.dsl import Dataset, Input, Metrics, Model, Output

IMAGE = "example.org/longstride@sha256:" + "0" * 64


def light(func):
    """A lightweight component as the product compiles them."""
    return dsl.component(func, base_image=IMAGE, install_kfp_package=False)


@light
def number(value: int) -> int:
    return value


@light
def real(value: float) -> float:
    return value


@light
def text(value: str) -> str:
    return value


@light
def kind_of(value: str) -> str:
    return type(value).__name__


@light
def truth(value: bool) -> bool:
    return value


@light
def numbers(values: list) -> list[int]:
    return values


@light
def struct(value: dict) -> dict:
    return value


@light
def struct_list(values: list) -> list:
    return values


@light
def records() -> list[dict]:
    return [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


@light
def add(a: int, b: int) -> int:
    return a + b


@light
def total(values: list[int]) -> int:
    if not all(type(v) is int for v in values):
        raise TypeError(f"not ints: {values!r}")
    return sum(values)


@light
def flatten(values: list[list[int]]) -> list[int]:
    return [v for row in values for v in row]


@light
def named(value: int) -> NamedTuple("Out", [("ppl", int), ("word", str)]):
    return (value, "w")


@light
def make_dataset(value: int, data: Output[Dataset]):
    data.metadata["count"] = value
    data.metadata["nested"] = {"deep": [value, 1.5, True]}
    with open(data.path, "w") as file:
        file.write(str(value))


@light
def read_dataset(data: Input[Dataset]) -> int:
    with open(data.path) as file:
        return int(file.read())


@light
def read_metadata(data: Input[Dataset]) -> dict:
    return data.metadata


@light
def read_many(data: Input[list[Dataset]]) -> list[int]:
    return [int(open(d.path).read()) for d in data]


@light
def maybe_dataset(data: Input[Dataset] = None) -> str:
    return "nothing" if data is None else open(data.path).read()


@light
def maybe_text(value: Optional[str] = None) -> str:  # noqa: UP045 - kfp reads only this
    return "nothing" if value is None else value


@light
def make_folder(model: Output[Model], metrics: Output[Metrics]):
    import os

    os.makedirs(model.path + "/sub")
    with open(model.path + "/sub/weights.txt", "w") as file:
        file.write("w" * 10)
    metrics.log_metric("loss", 3)


@light
def fail(message: str) -> int:
    raise ValueError(message)


@light
def nap(seconds: float) -> float:
    import time

    began = time.time()
    time.sleep(seconds)
    return began


@light
def status_of(status: dsl.PipelineTaskFinalStatus) -> dict:
    return {
        "state": status.state,
        "task": status.pipeline_task_name,
        "code": status.error_code,
        "message": status.error_message,
    }


@light
def environment_value(name: str) -> str:
    import os

    return os.environ.get(name, "unset")


@light
def loaded_modules(names: list) -> dict:
    import sys

    return {name: name in sys.modules for name in names}

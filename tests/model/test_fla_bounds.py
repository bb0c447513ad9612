import torch

from longstride.model.fla import document_bounds, usable


def test_documents_of_all_rows_lie_behind_each_other() -> None:
    segments = torch.tensor([[0, 0, 1, -1], [0, 1, 1, 1]])
    assert document_bounds(segments).tolist() == [0, 2, 3, 4, 5, 8]


def test_equal_indices_of_neighbouring_rows_are_different_documents() -> None:
    assert document_bounds(torch.zeros(3, 2, dtype=torch.int64)).tolist() == [0, 2, 4, 6]


def test_a_cpu_tensor_is_never_sent_to_gpu_kernels() -> None:
    assert not usable(torch.zeros(1, 2, 12, dtype=torch.bfloat16))

import math

import torch
from tiny_models import small_model

from longstride.model.layout import rotation, row_layout
from longstride.model.softmax import rotate


def test_rotation_turns_pairs_by_position_times_frequency() -> None:
    """Closed form: dimensions i and i + R are one complex number times exp(i p base^(-i/R))."""
    x = torch.randn(1, 1, 5, 8)
    cos, sin = rotation(torch.arange(5)[None], rotary_dim=6, base=100.0)
    got = rotate(x, cos, sin)
    for position in range(5):
        for i in range(3):
            number = complex(x[0, 0, position, i], x[0, 0, position, i + 3])
            angle = position * 100.0 ** (-i / 3)
            turned = number * complex(math.cos(angle), math.sin(angle))
            assert abs(turned.real - got[0, 0, position, i].item()) < 1e-5
            assert abs(turned.imag - got[0, 0, position, i + 3].item()) < 1e-5


def test_dimensions_beyond_the_rotary_ones_pass_unchanged() -> None:
    x = torch.randn(2, 3, 5, 8)
    cos, sin = rotation(torch.arange(5).expand(2, 5), rotary_dim=4, base=100.0)
    assert torch.equal(rotate(x, cos, sin)[..., 4:], x[..., 4:])


def test_angles_at_a_million_tokens_keep_their_fraction() -> None:
    cos, _ = rotation(torch.tensor([[1_000_003]]), rotary_dim=2, base=1e7)
    assert abs(cos.item() - math.cos(1_000_003)) < 1e-4


def test_attention_equals_its_formula_with_grouped_heads() -> None:
    layer = small_model(rotary_dim=0, block_types=["softmax"]).blocks[0].attention
    x = torch.randn(1, 6, 24)
    layout = row_layout((1, 6), device=x.device, chunk=8, rotary_dim=0, rope_base=10.0)
    q, k, v = (part.view(6, -1, 8) for part in layer.qkv_proj(x)[0].split([32, 16, 16], dim=-1))
    heads = []
    for head in range(4):
        scores = q[:, head] @ k[:, head // 2].t() / math.sqrt(8)
        scores = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), -math.inf)
        heads.append(scores.softmax(-1) @ v[:, head // 2])
    want = layer.out_proj(torch.cat(heads, dim=-1))
    torch.testing.assert_close(layer(x, layout)[0], want, atol=1e-5, rtol=0)


def test_scores_depend_on_distance_only() -> None:
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def score(query_at: int, key_at: int) -> float:
        cos_q, sin_q = rotation(torch.tensor([[query_at]]), 8, 100.0)
        cos_k, sin_k = rotation(torch.tensor([[key_at]]), 8, 100.0)
        return (rotate(q, cos_q, sin_q) * rotate(k, cos_k, sin_k)).sum().item()

    assert abs(score(9, 4) - score(105, 100)) < 1e-4

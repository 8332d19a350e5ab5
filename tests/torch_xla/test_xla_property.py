"""Random problems over all features on XLA tensors, eager and compiled, against float64."""

import pathlib

import pytest

pytest.importorskip("torch_xla", reason="PyTorch/XLA is not installed")

from property_cases import attention_group, update_group, v3_group

GPU = pathlib.Path("/dev/nvidiactl").exists()
# (groups, cases a group): each group is compiled anew.
ATTENTION = (36, 16) if GPU else (10, 6)
UPDATE = (16, 16) if GPU else (6, 6)
V3 = (16, 16) if GPU else (4, 6)

how = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "openxla"])


@how
@pytest.mark.parametrize("group", range(ATTENTION[0]))
def test_paged_attention(group, compiled, histogram):
    attention_group([270, group], ATTENTION[1], compiled, histogram)


@how
@pytest.mark.parametrize("group", range(UPDATE[0]))
def test_update_kv_cache(group, compiled):
    update_group([280, group], UPDATE[1], compiled)


@how
@pytest.mark.parametrize("group", range(V3[0]))
def test_ragged_paged_attention_v3(group, compiled, histogram):
    v3_group([290, group], V3[1], compiled, histogram)

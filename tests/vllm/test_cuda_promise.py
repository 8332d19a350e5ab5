"""What the backend for vLLM on CUDA promises of a batch's queries; on CPU tensors."""

import pytest

pytest.importorskip("vllm")

from test_cuda_backend import Batch, Case, check
from xla_gpu.vllm_cuda import backend


@pytest.mark.parametrize(("queries", "promised"), [(1, 1), (5, 5), (32, 32), (33, 0), (8192, 0)])
def test_few_queries_are_promised(monkeypatch, queries, promised):
    batch = Batch(Case(batch=((1, 20), (6, 6))))
    batch.common.max_query_len = queries
    implementation = batch.implementation()
    batch.fill(implementation)
    given, attention = [], backend._attention

    def recording(*args, **options):
        given.append(options["max_query_len"])
        return attention(*args, **options)

    monkeypatch.setattr(backend, "_attention", recording)
    check(batch, batch.run(implementation))  # whether it is kept or not
    assert set(given) == {promised}

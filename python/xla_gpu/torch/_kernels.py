"""What torch.ops.xla_gpu.* do on CPU and CUDA tensors: calls of the library on their memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch

from xla_gpu import _ops
from xla_gpu._errors import make_error
from xla_gpu.torch import _schema
from xla_gpu.torch._prepared import MAX_PREPARED, Prepared, ensure_context, thread
from xla_gpu.torch._schema import OpCall

Tensors = tuple[torch.Tensor, ...]

_PLATFORMS = {"cpu": "Host", "cuda": "CUDA"}
# Too large to be copied behind the user's back.
_CACHES = ("kv_cache", "v_cache")

# By C functions alone: these run for every tensor of every call.
_type_of = attrgetter("shape", "dtype", "device")
_is_contiguous = torch.Tensor.is_contiguous
_data_ptr = torch.Tensor.data_ptr
_current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


class Kernel:
    """The implementation of one torch op.

    Attributes:
      name: the torch op's, in torch.ops.xla_gpu.
      build: makes the OpCall of `tensors` (present ones, in order) and `options`.
      outputs: how many results the torch op returns; what follows is work space.
      required: how many tensors always come; optional ones follow.
      floats: how many of the first are floating.
      varying: beside the first tensor, the one whose shape changes most from call to call.
      written: positions in `tensors` of what it changes in place.
    """

    def __init__(
        self,
        name: str,
        build: Callable[[Tensors, Any], OpCall],
        outputs: int,
        written: tuple[int, ...] = (),
    ) -> None:
        self.name = name
        self.build = build
        self.outputs = outputs
        self.written = written
        attention = name.startswith("paged_attention")
        self.required = 6 if attention else 2 if name == "simple_add" else 4
        self.floats = 3 if name.startswith("update") else 2
        self.varying = min(3, self.required - 1)

    def __call__(self, tensors: Tensors, options: Any) -> Any:
        """Runs the op on CPU or CUDA tensors; gives what the torch op returns."""
        try:
            short_key = (self, options, tensors[0].shape, tensors[self.varying].shape)
            recent = thread.recent.get(short_key)
            if recent is not None and (recent.index < 0 or recent.index == _current_device()):
                if self.outputs == 1 and len(recent.makers) == 1:
                    result = recent.makers[0](tensors)
                    if recent.run_objects((*tensors, result)):
                        return result
                else:
                    results = [make(tensors) for make in recent.makers]
                    if recent.run_objects((*tensors, *results)):
                        return self._returned(results)
            key = (self, options, *map(_type_of, tensors), *map(_is_contiguous, tensors))
        except AttributeError:
            self.check_present(tensors)
            raise
        prepared = thread.prepared.get(key)
        if prepared is not None and prepared.object_call:
            thread.recent[short_key] = prepared
        if prepared is None:
            return self._first(key, tensors, options)
        if prepared.index >= 0 and prepared.index != _current_device():
            with torch.cuda.device(prepared.index):
                return self._run(prepared, tensors)
        return self._run(prepared, tensors)

    def _run(self, prepared: Prepared, tensors: Tensors) -> Any:
        addresses = list(map(_data_ptr, tensors))
        if self.written:
            self._check_overlap(addresses, prepared.sizes)
        results = [make(tensors) for make in prepared.makers]
        prepared.run(addresses + list(map(_data_ptr, results)))
        return self._returned(results)

    def _returned(self, results: list[torch.Tensor]) -> Any:
        if self.outputs == 1:
            return results[0]
        return tuple(results[: self.outputs]) if self.outputs else None

    def _first(self, key: Any, tensors: Tensors, options: Any) -> Any:
        """The first call of its types: all checks, with their messages."""
        call = self.build(tensors, options)
        device = call.args[0].device
        if device.type not in _PLATFORMS:
            raise make_error(
                12, f"{call.op}: {call.names[0]} is on {device}; allowed are CPU and CUDA tensors"
            )
        specs = _schema.specs_of(call)
        args = tuple(_ready(call))
        platform = _PLATFORMS[device.type]
        results = [r.spec for r in _ops.infer(call.op, platform, specs, call.attrs)]
        prepared = Prepared(call, specs, results, device, platform, self.written)
        as_given = len(args) == len(tensors) and all(
            a.data_ptr() == t.data_ptr() for a, t in zip(args, tensors)
        )
        if as_given:
            if len(thread.prepared) >= MAX_PREPARED:
                thread.prepared.clear()
                thread.recent.clear()
            thread.prepared[key] = prepared
        if platform == "Host":
            return self._run(prepared, args)
        with torch.cuda.device(device):
            ensure_context(prepared.index)
            return self._run(prepared, args)

    def check_present(self, tensors: Sequence[torch.Tensor | None]) -> None:
        """A required tensor may come as None, which torch lets pass: InvalidArgumentError."""
        for i, tensor in enumerate(tensors):
            if tensor is None:
                op = getattr(torch.ops.xla_gpu, self.name).default
                name = op._schema.arguments[i].name
                raise make_error(3, f"{self.name}: {name} is None; it must be a tensor")

    def _check_overlap(self, addresses: Sequence[int], sizes: Sequence[int]) -> None:
        """In place, nothing that is read may lie in what is written."""
        for w in self.written:
            begin, end = addresses[w], addresses[w] + sizes[w]
            for i, (address, size) in enumerate(zip(addresses, sizes)):
                if i != w and address < end and begin < address + size:
                    raise make_error(
                        3,
                        f"{self.name}: argument {i} shares memory with the cache (argument {w}) "
                        "that is written in place; pass a copy of it (.clone())",
                    )


def _ready(call: OpCall) -> list[torch.Tensor]:
    """The arguments, dense and row-major, all on one device; else an error that names one."""
    device = call.args[0].device
    ready = []
    for name, tensor in zip(call.names, call.args):
        if tensor.device != device:
            raise make_error(
                3,
                f"{call.op}: {name} {_schema.describe(tensor)} is on {tensor.device} but "
                f"{call.names[0]} is on {device}; all arguments must be on one device",
            )
        if tensor.layout != torch.strided:
            raise make_error(
                3, f"{call.op}: {name} is {tensor.layout}; it must be dense (torch.strided)"
            )
        if not tensor.is_contiguous():
            if name in _CACHES:
                raise make_error(
                    3,
                    f"{call.op}: {name} {_schema.describe(tensor)} has strides "
                    f"{tuple(tensor.stride())}; a cache must be contiguous, since a call does "
                    "not copy it (call .contiguous() once, when it is made)",
                )
            tensor = tensor.contiguous()
        ready.append(tensor)
    return ready


# ---- The ops, with the signatures of their schemas ------------------------------------------


def _build_simple_add(tensors: Tensors, options: Any) -> OpCall:
    return _schema.simple_add_call(*tensors)


def _build_attention(tensors: Tensors, options: Any) -> OpCall:
    scale, window, cap, causal, out_dtype, optional, return_lse = options
    return _schema.attention_call(
        *tensors[:6],
        scale,
        window,
        cap,
        causal=causal,
        out_dtype=out_dtype,
        return_lse=return_lse,
        **dict(zip(optional, tensors[6:])),
    )


def _build_update(tensors: Tensors, optional: tuple[str, ...]) -> OpCall:
    return _schema.update_call(*tensors[:4], **dict(zip(optional, tensors[4:])))


simple_add_kernel = Kernel("simple_add", _build_simple_add, 1)
attention_kernel = Kernel("paged_attention", _build_attention, 1)
attention_lse_kernel = Kernel("paged_attention_with_lse", _build_attention, 2)
update_kernel = Kernel("update_kv_cache", _build_update, 1)
update_pair_kernel = Kernel("update_kv_cache_pair", _build_update, 2)
update_in_place_kernel = Kernel("update_kv_cache_", _build_update, 0, written=(2,))
update_pair_in_place_kernel = Kernel("update_kv_cache_", _build_update, 0, written=(2, 4))

_NONE: tuple[str, ...] = ()


def _present(**optional: torch.Tensor | None) -> tuple[Tensors, tuple[str, ...]]:
    given = {name: tensor for name, tensor in optional.items() if tensor is not None}
    return tuple(given.values()), tuple(given)


# Each takes the arguments of a torch op: (kernel, the tensors that came, options).
Inputs = tuple[Kernel, Tensors, Any]


def simple_add_inputs(a: torch.Tensor, b: torch.Tensor) -> Inputs:
    """The inputs of torch.ops.xla_gpu.simple_add."""
    return simple_add_kernel, (a, b), None


def attention_inputs(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_seqs: torch.Tensor,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    *,
    v_cache: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    causal: bool = True,
    out_dtype: torch.dtype | None = None,
) -> Inputs:
    """The inputs of torch.ops.xla_gpu.paged_attention."""
    tensors = (query, kv_cache, context_lens, block_tables, query_start_loc, num_seqs)
    names = _NONE
    if not (v_cache is None and sinks is None and k_scale is None and v_scale is None):
        more, names = _present(v_cache=v_cache, sinks=sinks, k_scale=k_scale, v_scale=v_scale)
        tensors += more
    options = (scale, sliding_window, soft_cap, causal, out_dtype, names, False)
    return attention_kernel, tensors, options


def attention_lse_inputs(*args: Any, **kwargs: Any) -> Inputs:
    """The inputs of torch.ops.xla_gpu.paged_attention_with_lse."""
    _, tensors, options = attention_inputs(*args, **kwargs)
    return attention_lse_kernel, tensors, (*options[:-1], True)


def update_inputs(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> Inputs:
    """The inputs of torch.ops.xla_gpu.update_kv_cache."""
    more, names = _present(k_scale=k_scale, v_scale=v_scale)
    return update_kernel, (key, value, kv_cache, slot_mapping, *more), names


def update_pair_inputs(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> Inputs:
    """The inputs of torch.ops.xla_gpu.update_kv_cache_pair."""
    more, names = _present(v_cache=v_cache, k_scale=k_scale, v_scale=v_scale)
    return update_pair_kernel, (key, value, kv_cache, slot_mapping, *more), names


def update_in_place_inputs(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    v_cache: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> Inputs:
    """The inputs of torch.ops.xla_gpu.update_kv_cache_."""
    more, names = _present(v_cache=v_cache, k_scale=k_scale, v_scale=v_scale)
    kernel = update_in_place_kernel if v_cache is None else update_pair_in_place_kernel
    return kernel, (key, value, kv_cache, slot_mapping, *more), names


INPUTS: dict[str, Callable[..., Inputs]] = {
    "simple_add": simple_add_inputs,
    "paged_attention": attention_inputs,
    "paged_attention_with_lse": attention_lse_inputs,
    "update_kv_cache": update_inputs,
    "update_kv_cache_pair": update_pair_inputs,
    "update_kv_cache_": update_in_place_inputs,
}

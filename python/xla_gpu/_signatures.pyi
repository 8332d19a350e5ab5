"""The types of functions for JAX and for torch that differ in their arrays alone."""

from typing import Generic, Literal, Protocol, TypedDict, TypeVar, overload

from typing_extensions import Unpack

_Array = TypeVar("_Array", contravariant=True)
_Number = TypeVar("_Number", contravariant=True)  # an array or a Python number
_DType = TypeVar("_DType", contravariant=True)
_Result = TypeVar("_Result", covariant=True)

class _Options(TypedDict, Generic[_Number, _DType], total=False):
    sinks: _Number | None
    k_scale: _Number | None
    v_scale: _Number | None
    causal: bool
    max_query_len: int
    out_dtype: _DType | None
    batch_invariant: bool | None

class PagedAttention(Protocol[_Array, _Number, _DType, _Result]):
    @overload
    def __call__(
        self,
        query: _Array,
        kv_cache: _Array | tuple[_Array, _Array],
        context_lens: _Array,
        block_tables: _Array,
        query_start_loc: _Array,
        num_seqs: _Array | int | None = ...,
        scale: float | None = ...,
        sliding_window: int | None = ...,
        soft_cap: float | None = ...,
        *,
        return_lse: Literal[False] = ...,
        **options: Unpack[_Options[_Number, _DType]],
    ) -> _Result: ...
    @overload
    def __call__(
        self,
        query: _Array,
        kv_cache: _Array | tuple[_Array, _Array],
        context_lens: _Array,
        block_tables: _Array,
        query_start_loc: _Array,
        num_seqs: _Array | int | None = ...,
        scale: float | None = ...,
        sliding_window: int | None = ...,
        soft_cap: float | None = ...,
        *,
        return_lse: Literal[True],
        **options: Unpack[_Options[_Number, _DType]],
    ) -> tuple[_Result, _Result]: ...
    @overload
    def __call__(
        self,
        query: _Array,
        kv_cache: _Array | tuple[_Array, _Array],
        context_lens: _Array,
        block_tables: _Array,
        query_start_loc: _Array,
        num_seqs: _Array | int | None = ...,
        scale: float | None = ...,
        sliding_window: int | None = ...,
        soft_cap: float | None = ...,
        *,
        return_lse: bool,
        **options: Unpack[_Options[_Number, _DType]],
    ) -> _Result | tuple[_Result, _Result]: ...

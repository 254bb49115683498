"""Stock operators that have the same bits on every device, instruction set and thread count as they are.

They move bytes, compare, select, compute with whole numbers, or round once per element as IEEE 754 says
(multiplication, division, conversions). Each is run by tests/numerics/kernels/isa_probe.py under every instruction set
of this CPU.

    SAFE       the stock kernels of the CPU and of CUDA
    SAFE_CPU   the CPU's stock kernel is the definition; on CUDA a form has its bits
    SAFE_CUDA  the other way round

An entry without a dot stands for all overloads of the operator and of its in-place variant; with a dot, for one. What
is neither here nor a form is refused in a D2 job. Not here, though they look harmless: maximum, minimum and amax (which
zero they return where +0 meets -0 depends on the instruction set), division on CUDA (by a number it multiplies by the
reciprocal), multiplication on CUDA (of bf16 by an fp32 tensor without dimensions, which is rounded to bf16 there and
not on CPUs), relu and clamp on CUDA (relu(-0) is +0 there and -0 on CPUs), threshold on CUDA (rounded to bf16 there
and not on CPUs), clamp on CPUs (a bound that is NaN), gradients of hardtanh and the like (NaN), fmod on CPUs, arange
and linspace (fp32 against fp64 inside), unstable sorts, anything that adds more than once per element.
"""

from __future__ import annotations

from easyscale.numerics.kernels.registry import DeviceKind

_VIEWS = """
_assert_async _assert_scalar _assert_tensor_metadata _efficientzerotensor _functional_assert_async
_functional_assert_scalar _fused_sdp_choice _fw_primal _has_same_storage_numel _lazy_clone _make_dep_token _make_dual
_print _reshape_alias _resize_output _unsafe_view alias as_strided detach diagonal expand is_pinned is_same_size
is_set_to lift lift_fresh narrow permute record_stream resize resize_as select set_ slice split split_with_sizes
squeeze sym_constrain_range sym_constrain_range_for_size t transpose unbind unfold unsafe_split
unsafe_split_with_sizes unsqueeze view view_as
"""

_COPIES = """
_chunk_cat _copy_from _copy_from_and_resize _foreach_clone _foreach_copy _local_scalar_dense _pack_padded_sequence
_pin_memory _reshape_copy _stack _to_copy _unsafe_index _unsafe_masked_index alias_copy as_strided_copy
as_strided_scatter block_diag cat channel_shuffle clone constant_pad_nd copy detach_copy diag_embed diagonal_backward
diagonal_copy diagonal_scatter embedding expand_copy flip from_file gather im2col index.Tensor index.Tensor_out
index_copy index_fill index_select lift_fresh_copy masked_fill masked_scatter masked_scatter_backward masked_select
narrow_copy native_channel_shuffle permute_copy pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d
reflection_pad3d repeat replication_pad1d replication_pad2d replication_pad3d roll rot90 scatter.src scatter.src_out
scatter.value scatter.value_out scatter_.src scatter_.value select_backward select_copy select_scatter slice_backward
slice_copy slice_inverse slice_scatter split_copy split_with_sizes_copy squeeze_copy stack t_copy take transpose_copy
tril triu unbind_copy unfold_copy unsqueeze_copy view_copy where
"""

_MAKING = """
_foreach_zero _new_zeros_with_same_feature_meta empty empty_like empty_permuted empty_strided eye fill full full_like
new_empty new_empty_strided new_full new_ones new_zeros ones ones_like scalar_tensor tril_indices triu_indices zero
zeros zeros_like
"""

_COMPARING = """
_cummax_helper _cummin_helper _is_all_true _is_any_true adaptive_max_pool2d adaptive_max_pool3d all any argmax argmin
bucketize count_nonzero cummax cummin eq ge gt isin.Tensor_Tensor isin.Tensor_Tensor_out isinf isnan isneginf isposinf
le logical_and logical_not logical_or logical_xor lt max.dim max.dim_max max_pool2d_with_indices
max_pool3d_with_indices min.dim min.dim_min ne nonzero nonzero_static searchsorted signbit
"""

_WHOLE_NUMBERS = """
__ilshift__ __irshift__ __lshift__ __rshift__ _convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo
_int_mm bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor gcd lcm
repeat_interleave.Tensor repeat_interleave.Tensor_out
"""

# Kernels of their own that only call other operators.
_CALLING = """
_embedding_bag_backward
"""

# One IEEE operation for each element, or the choice of an input.
_ONE_ROUNDING = """
_amp_foreach_non_finite_check_and_unscale _amp_update_scale _foreach_abs _foreach_ceil _foreach_div _foreach_floor
_foreach_frac _foreach_mul _foreach_neg _foreach_reciprocal _foreach_round _foreach_sign _foreach_trunc _prelu_kernel
_prelu_kernel_backward abs ceil copysign floor frac frexp hardshrink heaviside ldexp leaky_relu leaky_relu_backward
nan_to_num neg nextafter reciprocal round.default round.out round_.default rsub sgn sign trunc
"""

_BY_CPU = """
_index_put_impl bincount col2im div.Tensor div.out div_.Tensor hardtanh mul put random randperm
reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward relu replication_pad1d_backward
replication_pad2d_backward replication_pad3d_backward threshold threshold_backward unfold_backward
"""

_BY_CUDA = """
_foreach_add.Scalar _foreach_add.ScalarList _foreach_add_.Scalar _foreach_add_.ScalarList _foreach_sub.Scalar
_foreach_sub.ScalarList _foreach_sub_.Scalar _foreach_sub_.ScalarList _use_cudnn_ctc_loss _use_miopen_ctc_loss add
fmod remainder sub
"""

SAFE = frozenset((_VIEWS + _COPIES + _MAKING + _COMPARING + _WHOLE_NUMBERS + _CALLING + _ONE_ROUNDING).split())
SAFE_CPU = frozenset(_BY_CPU.split())
SAFE_CUDA = frozenset(_BY_CUDA.split())


def is_safe(name: str, device: DeviceKind) -> bool:
    """Whether the stock kernel of an overload ("mul.Tensor", "relu_") has D2's bits on this device."""
    packet, _, overload = name.partition(".")
    functional = packet.removesuffix("_") if not packet.endswith("__") else packet
    shown = {packet, functional, f"{packet}.{overload or 'default'}"}
    return bool(shown & SAFE) or bool(shown & (SAFE_CPU if device == "cpu" else SAFE_CUDA))

// The operators that an exported program calls outside its delegates.
#include <algorithm>

#include <executorch/extension/kernel_util/make_boxed_from_unboxed_functor.h>
#include <executorch/runtime/kernel/kernel_includes.h>
#include <executorch/runtime/kernel/thread_parallel_interface.h>

#include "program.h"

namespace astrai {
namespace {

using executorch::aten::ArrayRef;
using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::aten::Tensor;
using executorch::runtime::Error;
using executorch::runtime::KernelRuntimeContext;

bool is_float(const Tensor& tensor) { return tensor.scalar_type() == ScalarType::Float; }

Error resize(Tensor& out, std::vector<SizesType> sizes) {
  return executorch::runtime::resize_tensor(out, ArrayRef<SizesType>(sizes.data(), sizes.size()));
}

// kvcache::update_and_attend over packed rows: q [T, H, 1, D], k and v [T, H_kv, 1, D], every
// token a batch entry of its own. Cells and positions come with the step.
Tensor& update_and_attend(KernelRuntimeContext& context, const Tensor& q, const Tensor& k,
                          const Tensor& v, const Tensor& /*position*/, int64_t layer,
                          double scale, ScalarType /*out_dtype*/, Tensor& out) {
  ET_KERNEL_CHECK_MSG(context, running != nullptr, InvalidState, out, "no step is running");
  const KvShape& shape = running->cache.shape();
  ET_KERNEL_CHECK_MSG(context, is_float(q) && is_float(k) && is_float(v) && is_float(out),
                      InvalidArgument, out, "attention takes float32 only");
  ET_KERNEL_CHECK_MSG(context,
                      layer >= 0 && layer < shape.layers && q.dim() == 4 && k.dim() == 4 &&
                          k.size(1) == shape.kv_heads && q.size(1) % k.size(1) == 0 &&
                          q.size(3) == shape.head_width && k.size(3) == shape.head_width &&
                          k.numel() == v.numel() && q.size(0) == k.size(0),
                      InvalidArgument, out, "attention shapes are not the cache's");
  ET_KERNEL_CHECK(
      context, resize(out, {q.sizes().begin(), q.sizes().end()}) == Error::Ok, InvalidArgument,
      out);
  append(running->cache, running->step, int(layer), k.const_data_ptr<float>(),
         v.const_data_ptr<float>(), k.size(0));
  attend(running->cache, running->step, int(layer), running->windows[layer], float(scale),
         q.const_data_ptr<float>(), int(q.size(1)), out.mutable_data_ptr<float>());
  return out;
}

// One head: component i turns with i + half_width, those from 2 * half_width on stay.
void rotate_head(const float* from, const float* __restrict cos, const float* __restrict sin,
                 int64_t half_width, int64_t width, float* __restrict to) {
  for (int64_t i = 0; i < half_width; i++) {
    const float first = from[i], second = from[i + half_width];
    to[i] = first * cos[i] - second * sin[i];
    to[i + half_width] = second * cos[i] + first * sin[i];
  }
  std::copy(from + 2 * half_width, from + width, to + 2 * half_width);
}

// astrai::rotate: half-split rotary embedding of x [T, heads, 1, D] by cos and sin [T, half].
Tensor& rotate(KernelRuntimeContext& context, const Tensor& x, const Tensor& cos,
               const Tensor& sin, Tensor& out) {
  ET_KERNEL_CHECK_MSG(context,
                      is_float(x) && is_float(cos) && is_float(sin) && is_float(out) &&
                          x.dim() == 4 && cos.numel() == sin.numel() && cos.dim() == 2 &&
                          cos.size(0) == x.size(0) && 2 * cos.size(1) <= x.size(3),
                      InvalidArgument, out, "rotation shapes do not fit");
  ET_KERNEL_CHECK(
      context, resize(out, {x.sizes().begin(), x.sizes().end()}) == Error::Ok, InvalidArgument,
      out);
  constexpr int64_t kHeadsWorthAThread = 512;
  const int64_t half_width = cos.size(1), width = x.size(3), heads = x.size(1);
  const float* all_x = x.const_data_ptr<float>();
  const float* all_cos = cos.const_data_ptr<float>();
  const float* all_sin = sin.const_data_ptr<float>();
  float* all_out = out.mutable_data_ptr<float>();
  executorch::extension::parallel_for(
      0, x.size(0) * heads, kHeadsWorthAThread, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
          const int64_t angles = row / heads * half_width;
          rotate_head(all_x + row * width, all_cos + angles, all_sin + angles, half_width, width,
                      all_out + row * width);
        }
      });
  return out;
}

template <typename Value>
void scale_row(const Value* values, const half* scales, int64_t width, int64_t group, float* to) {
  for (int64_t i = 0; i < width; i++) {
    to[i] = float(scales[i / group]) * float(values[i]);
  }
}

// Rows of a table by their ids, checked by the caller.
template <typename Value>
void embed_rows(const Tensor& tokens, const Tensor& table, const Tensor& scales, float* to) {
  const int64_t width = table.size(1), groups = scales.size(1);
  const int32_t* ids = tokens.const_data_ptr<int32_t>();
  const Value* values = table.const_data_ptr<Value>();
  const auto* all_scales = static_cast<const half*>(scales.const_data_ptr());
  for (int64_t row = 0; row < tokens.size(0); row++) {
    scale_row(values + ids[row] * width, all_scales + ids[row] * groups, width, width / groups,
              to + row * width);
  }
}

bool are_rows_of(const Tensor& tokens, const Tensor& table) {
  const int32_t* ids = tokens.const_data_ptr<int32_t>();
  return std::all_of(ids, ids + tokens.size(0),
                     [&](int32_t id) { return id >= 0 && id < table.size(0); });
}

// astrai::embed: rows of an int8, int16 or float32 table [vocabulary, width] with one float16
// scale for each run of width / scales.size(1) values, as float32 [T, width]; or those that came
// with the step.
Tensor& embed(KernelRuntimeContext& context, const Tensor& tokens, const Tensor& table,
              const Tensor& scales, Tensor& out) {
  ET_KERNEL_CHECK_MSG(context,
                      tokens.scalar_type() == ScalarType::Int && tokens.dim() == 1 &&
                          (table.scalar_type() == ScalarType::Char ||
                           table.scalar_type() == ScalarType::Short || is_float(table)) &&
                          table.dim() == 2 && scales.scalar_type() == ScalarType::Half &&
                          scales.dim() == 2 && scales.size(0) == table.size(0) &&
                          scales.size(1) > 0 && table.size(1) % scales.size(1) == 0 &&
                          is_float(out),
                      InvalidArgument, out, "embedding shapes do not fit");
  const int64_t width = table.size(1);
  ET_KERNEL_CHECK(context,
                  resize(out, {SizesType(tokens.size(0)), SizesType(width)}) == Error::Ok,
                  InvalidArgument, out);
  ET_KERNEL_CHECK_MSG(context, are_rows_of(tokens, table), InvalidArgument, out,
                      "token id outside the table");
  float* to = out.mutable_data_ptr<float>();
  switch (table.scalar_type()) {
    case ScalarType::Char:
      embed_rows<int8_t>(tokens, table, scales, to);
      break;
    case ScalarType::Short:
      embed_rows<int16_t>(tokens, table, scales, to);
      break;
    default:
      embed_rows<float>(tokens, table, scales, to);
  }
  const Embedded& given = running->embedded;
  ET_KERNEL_CHECK_MSG(context, given.count == 0 || given.width == width, InvalidArgument, out,
                      "embeddings are not as wide as the table");
  for (int64_t i = 0; i < given.count; i++) {
    std::copy_n(given.values + i * width, width, to + given.rows[i] * width);
  }
  return out;
}

EXECUTORCH_LIBRARY(kvcache, "update_and_attend.out", update_and_attend);
EXECUTORCH_LIBRARY(astrai, "rotate.out", rotate);
EXECUTORCH_LIBRARY(astrai, "embed.out", embed);

}  // namespace
}  // namespace astrai

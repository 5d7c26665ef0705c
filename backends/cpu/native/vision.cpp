// The C interface of vision towers: a program of methods that map rows, and the attention between
// them. The caller holds the rows of an image and gives them to a method some at a time, so that
// the program's own memory does not grow with images.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/platform/runtime.h>

#include "interface.h"
#include "kv_cache.h"

namespace astrai {

struct Matrix {
  float* values;
  int64_t rows;
  int64_t columns;
};

struct Tower {
  explicit Tower(const char* path)
      // Methods run one at a time and keep nothing, so they share their memory.
      : module(path, executorch::extension::Module::LoadMode::Mmap, nullptr, nullptr, nullptr,
               /*share_memory_arenas=*/true) {}

  executorch::extension::Module module;
};

}  // namespace astrai

using namespace astrai;
using executorch::runtime::Error;

// Loads a program with all its methods.
ASTRAI_EXPORT Tower* astrai_open_tower(const char* path, char* error) {
  executorch::runtime::runtime_init();
  auto tower = std::make_unique<Tower>(path);
  const auto methods = tower->module.method_names();
  Error status = methods.error();
  if (methods.ok()) {
    for (const std::string& method : *methods) {
      status = tower->module.load_method(method);
      if (status != Error::Ok) {
        break;
      }
    }
  }
  if (status != Error::Ok) {
    fail(error, "ExecuTorch cannot load it: error 0x%x", unsigned(status));
    return nullptr;
  }
  open_programs++;
  return tower.release();
}

ASTRAI_EXPORT void astrai_close_tower(Tower* tower) {
  delete tower;
  open_programs--;
}

// Runs a method on as many rows as it may be given at once, and copies its outputs out.
ASTRAI_EXPORT int astrai_run_tower(Tower* tower, const char* method, const Matrix* inputs,
                                   int64_t n_inputs, const Matrix* outputs, int64_t n_outputs,
                                   char* error) {
  using executorch::aten::SizesType;
  using executorch::extension::from_blob;
  std::vector<executorch::extension::TensorPtr> tensors;
  std::vector<executorch::runtime::EValue> values;
  for (int64_t i = 0; i < n_inputs; i++) {
    tensors.push_back(from_blob(inputs[i].values,
                                {SizesType(inputs[i].rows), SizesType(inputs[i].columns)}));
    values.emplace_back(*tensors.back());
  }
  const auto results = tower->module.execute(method, values);
  if (!results.ok()) {
    return fail(error, "ExecuTorch failed: error 0x%x", unsigned(results.error()));
  }
  if (int64_t(results->size()) != n_outputs) {
    return fail(error, "%s has %zu outputs", method, results->size());
  }
  for (int64_t i = 0; i < n_outputs; i++) {
    const auto& result = (*results)[i].toTensor();
    if (result.scalar_type() != executorch::aten::ScalarType::Float ||
        result.numel() != outputs[i].rows * outputs[i].columns) {
      return fail(error, "output %d of %s has another shape", int(i), method);
    }
    std::memcpy(outputs[i].values, result.const_data_ptr<float>(), result.nbytes());
  }
  return 0;
}

// Attention without a mask inside groups of consecutive rows: q, k, v and out are
// [rows][heads][head width], and the sizes in `groups` add up to the rows.
ASTRAI_EXPORT int astrai_attend_groups(const float* q, const float* k, const float* v, int heads,
                                       int head_width, float scale, const int64_t* groups,
                                       int64_t n_groups, float* out, char* error) {
  // A page for each group, as large as the largest.
  int64_t page_size = 0;
  for (int64_t i = 0; i < n_groups; i++) {
    page_size = std::max(page_size, groups[i]);
  }
  std::vector<int32_t> pages(n_groups);
  std::vector<Sequence> sequences;
  std::vector<int64_t> cells;
  for (int64_t i = 0; i < n_groups; i++) {
    pages[i] = int32_t(i);
    sequences.push_back({int64_t(cells.size()), groups[i], 0, &pages[i]});
    for (int64_t j = 0; j < groups[i]; j++) {
      cells.push_back(i * page_size + j);
    }
  }
  KvCache cache({1, heads, head_width, KvType::kFloat32});
  if (!cache.allocate(n_groups * page_size)) {
    return fail(error, "no memory for the keys and values of %zu patches", cells.size());
  }
  const StepView step{cells.data(), sequences.data(), n_groups, page_size, /*causal=*/false};
  append(cache, step, 0, k, v, int64_t(cells.size()));
  attend(cache, step, 0, /*window=*/0, scale, q, heads, out);
  return 0;
}

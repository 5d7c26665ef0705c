// The C interface of text models, which Python loads with ctypes.
#include <cstdio>

#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/runtime.h>

#include "huge_pages.h"
#include "interface.h"
#include "program.h"

// The wheel's thread pool library exports this class but ships no header for it.
namespace executorch::extension::threadpool {
class ThreadPool {
 public:
  bool _unsafe_reset_threadpool(uint32_t num_threads);
  size_t get_thread_count() const;
};
ThreadPool* get_threadpool();
}  // namespace executorch::extension::threadpool

namespace astrai {

thread_local Program* running = nullptr;
std::atomic<int> open_programs{0};

namespace {

using executorch::extension::from_blob;
using executorch::runtime::Error;
using executorch::runtime::EValue;

// ExecuTorch reports what it finds about the processor at start; only its errors are news.
void log_errors(et_timestamp_t, et_pal_log_level_t level, const char*, const char*, size_t,
                const char* message, size_t length) {
  if (level == et_pal_log_level_t::kError || level == et_pal_log_level_t::kFatal) {
    std::fprintf(stderr, "executorch: %.*s\n", int(length), message);
  }
}

const bool logging_is_quiet = executorch::runtime::register_pal(
    executorch::runtime::PalImpl::create(log_errors, __FILE__));

struct RunningScope {
  explicit RunningScope(Program* program) { running = program; }
  ~RunningScope() { running = nullptr; }
};

}  // namespace
}  // namespace astrai

using namespace astrai;

// Sets the size of the process's thread pool, unless a program is open; returns what it is.
ASTRAI_EXPORT int astrai_set_threads(int threads) {
  auto* pool = executorch::extension::threadpool::get_threadpool();
  if (pool == nullptr) {
    return -1;
  }
  if (open_programs == 0 && pool->get_thread_count() != size_t(threads)) {
    pool->_unsafe_reset_threadpool(uint32_t(threads));
  }
  return int(pool->get_thread_count());
}

// Loads a program's "forward". windows: one a layer, 0 for none.
ASTRAI_EXPORT Program* astrai_open(const char* path, int layers, int kv_heads, int head_width,
                                   int kv_type, const int64_t* windows, char* error) {
  executorch::runtime::runtime_init();
  const KvShape shape{layers, kv_heads, head_width, KvType(kv_type)};
  auto program = std::make_unique<Program>(path, shape,
                                           std::vector<int64_t>(windows, windows + layers));
  const auto before = anonymous_memory();
  const Error status = program->module.load_forward();
  if (status != Error::Ok) {
    fail(error, "ExecuTorch cannot load it: error 0x%x", unsigned(status));
    return nullptr;
  }
  use_huge_pages_since(before);
  open_programs++;
  return program.release();
}

ASTRAI_EXPORT void astrai_close(Program* program) {
  delete program;
  open_programs--;
}

ASTRAI_EXPORT int64_t astrai_bytes_per_cell(const Program* program) {
  return int64_t(program->cache.shape().bytes_per_cell());
}

ASTRAI_EXPORT int astrai_allocate(Program* program, int64_t cells) {
  return program->cache.allocate(cells) ? 0 : -1;
}

// Runs one packed step. tokens [n_tokens], positions and cells [n_tokens], rows [n_rows] (at
// least one); embedded: the tokens whose rows are given; causal: or else a token sees all of its
// sequence. `logits` is set to float32 [n_rows][vocabulary], and `taps` to the program's second
// output [n_tokens][width] where it has one; both are valid until the next step. Returns the
// vocabulary's size.
ASTRAI_EXPORT int64_t astrai_step(Program* program, const int32_t* tokens,
                                  const int64_t* positions, const int64_t* cells,
                                  int64_t n_tokens, const int64_t* rows, int64_t n_rows,
                                  const Sequence* sequences, int64_t n_sequences,
                                  int64_t page_size, int causal, const Embedded* embedded,
                                  const float** logits, const float** taps, char* error) {
  program->step = {cells, sequences, n_sequences, page_size, causal != 0};
  program->embedded = *embedded;
  const RunningScope scope(program);
  using executorch::aten::ScalarType;
  using executorch::aten::SizesType;
  const auto input = [](const void* data, int64_t n, ScalarType type) {
    return from_blob(const_cast<void*>(data), {SizesType(n)}, type);
  };
  const auto outputs = program->module.forward(std::vector<EValue>{
      input(tokens, n_tokens, ScalarType::Int), input(positions, n_tokens, ScalarType::Long),
      input(rows, n_rows, ScalarType::Long)});
  if (!outputs.ok()) {
    return fail(error, "ExecuTorch failed: error 0x%x", unsigned(outputs.error()));
  }
  const auto& result = (*outputs)[0].toTensor();
  if (result.dim() != 2 || result.size(0) != n_rows ||
      result.scalar_type() != ScalarType::Float) {
    return fail(error, "the program's output is not one row of logits a wanted row");
  }
  *logits = result.const_data_ptr<float>();
  *taps = outputs->size() > 1 ? (*outputs)[1].toTensor().const_data_ptr<float>() : nullptr;
  return result.size(1);
}

// Fills cells from rows [n_rows][width] at positions [n_rows] by the program's "context", which
// gives keys and values of each layer in turn.
ASTRAI_EXPORT int astrai_fill(Program* program, const float* rows, int64_t width,
                              const int64_t* positions, const int64_t* cells, int64_t n_rows,
                              char* error) {
  using executorch::aten::ScalarType;
  using executorch::aten::SizesType;
  const auto input = from_blob(const_cast<float*>(rows), {SizesType(n_rows), SizesType(width)});
  const auto at = from_blob(const_cast<int64_t*>(positions), {SizesType(n_rows)},
                            ScalarType::Long);
  const auto outputs = program->module.execute("context", std::vector<EValue>{input, at});
  if (!outputs.ok()) {
    return fail(error, "ExecuTorch failed: error 0x%x", unsigned(outputs.error()));
  }
  const KvShape& shape = program->cache.shape();
  const int64_t numbers = n_rows * shape.kv_heads * shape.head_width;
  if (outputs->size() != size_t(2) * shape.layers) {
    return fail(error, "the program's context has %zu outputs", outputs->size());
  }
  const StepView step{cells, nullptr, 0, 1};
  for (int layer = 0; layer < shape.layers; layer++) {
    const auto& k = (*outputs)[2 * layer].toTensor();
    const auto& v = (*outputs)[2 * layer + 1].toTensor();
    if (k.numel() != numbers || v.numel() != numbers) {
      return fail(error, "the program's context has keys or values of another shape");
    }
    append(program->cache, step, layer, k.const_data_ptr<float>(), v.const_data_ptr<float>(),
           n_rows);
  }
  return 0;
}

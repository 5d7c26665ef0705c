#include "kv_cache.h"

#include <sys/mman.h>

#include <executorch/runtime/kernel/thread_parallel_interface.h>

namespace astrai {

void Unmap::operator()(uint8_t* bytes) const { munmap(bytes, size); }

bool KvCache::allocate(int64_t cells) {
  bytes_.reset();
  cells_ = 0;
  size_t size;
  if (__builtin_mul_overflow(size_t(cells), shape_.bytes_per_cell(), &size)) {
    return false;
  }
  // Pages come zeroed, and only as cells are first used.
  void* bytes = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (bytes == MAP_FAILED) {
    return false;
  }
  bytes_ = std::unique_ptr<uint8_t[], Unmap>(static_cast<uint8_t*>(bytes), Unmap{size});
  cells_ = cells;
  return true;
}

namespace {

template <typename T>
void append_as(const KvCache& cache, const StepView& step, int layer, const float* k,
               const float* v, int64_t begin, int64_t end) {
  const int width = cache.shape().head_width;
  const int stride = cache.shape().padded_width();
  const int kv_heads = cache.shape().kv_heads;
  for (int head = 0; head < kv_heads; head++) {
    T* keys = static_cast<T*>(cache.keys(layer, head));
    T* values = static_cast<T*>(cache.values(layer, head));
    for (int64_t row = begin; row < end; row++) {
      const int64_t from = (row * kv_heads + head) * width;
      const int64_t to = step.cells[row] * stride;
      for (int i = 0; i < width; i++) {
        keys[to + i] = T(k[from + i]);
        values[to + i] = T(v[from + i]);
      }
    }
  }
}

}  // namespace

void append(const KvCache& cache, const StepView& step, int layer, const float* k, const float* v,
            int64_t rows) {
  constexpr int64_t kRowsWorthAThread = 64;
  executorch::extension::parallel_for(
      0, rows, kRowsWorthAThread, [&](int64_t begin, int64_t end) {
        if (cache.shape().type == KvType::kFloat16) {
          append_as<half>(cache, step, layer, k, v, begin, end);
        } else {
          append_as<float>(cache, step, layer, k, v, begin, end);
        }
      });
}

}  // namespace astrai

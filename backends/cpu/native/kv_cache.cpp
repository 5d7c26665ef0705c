#include "kv_cache.h"

#include <sys/mman.h>

#include <executorch/runtime/kernel/thread_parallel_interface.h>

namespace astrai {

void Unmap::operator()(uint8_t* bytes) const { munmap(bytes, size); }

bool KvCache::allocate(int64_t cells) {
  bytes_.reset();
  const size_t whole_blocks = size_t(block_end(cells - 1));
  size_t size;
  if (__builtin_mul_overflow(whole_blocks, shape_.bytes_per_cell(), &size)) {
    return false;
  }
  // Pages come zeroed, and only as cells are first used.
  void* bytes = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (bytes == MAP_FAILED) {
    return false;
  }
#ifdef MADV_HUGEPAGE
  madvise(bytes, size, MADV_HUGEPAGE);
#endif
  bytes_ = std::unique_ptr<uint8_t[], Unmap>(static_cast<uint8_t*>(bytes), Unmap{size});
  return true;
}

namespace {

template <typename T>
void convert(const float* from, T* to, int n) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store(to + i, load(from + i));
  }
  for (; i < n; i++) {
    to[i] = T(from[i]);
  }
}

template <typename T>
void append_as(const KvCache& cache, const StepView& step, int layer, const float* k,
               const float* v, int64_t begin, int64_t end) {
  const int width = cache.shape().head_width;
  const int kv_heads = cache.shape().kv_heads;
  for (int64_t row = begin; row < end; row++) {
    for (int head = 0; head < kv_heads; head++) {
      const int64_t from = (row * kv_heads + head) * width;
      convert(k + from, cache.key<T>(layer, head, step.cells[row]), width);
      convert(v + from, cache.value<T>(layer, head, step.cells[row]), width);
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

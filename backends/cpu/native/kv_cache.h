// Keys and values of all layers in cells, and what one packed step sees of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace astrai {

using half = _Float16;

enum class KvType : int32_t { kFloat16 = 0, kFloat32 = 1 };

// One vector register's worth of floats; heads are padded to whole ones.
constexpr int kLanes = 16;

struct KvShape {
  int layers;
  int kv_heads;
  int head_width;
  KvType type;

  int padded_width() const { return (head_width + kLanes - 1) / kLanes * kLanes; }
  size_t element_size() const { return type == KvType::kFloat16 ? sizeof(half) : sizeof(float); }
  size_t bytes_per_cell() const {
    return size_t(2) * layers * kv_heads * padded_width() * element_size();
  }
};

struct Unmap {
  size_t size = 0;
  void operator()(uint8_t* bytes) const;
};

// Storage laid out [layer][key or value][kv head][cell][padded width], zero at first.
class KvCache {
 public:
  explicit KvCache(const KvShape& shape) : shape_(shape) {}

  const KvShape& shape() const { return shape_; }
  int64_t cells() const { return cells_; }

  // Drops what was there. False where the memory cannot be had.
  bool allocate(int64_t cells);

  // The first cell of one head's keys or values in one layer.
  void* keys(int layer, int kv_head) const { return at(layer, 0, kv_head); }
  void* values(int layer, int kv_head) const { return at(layer, 1, kv_head); }

 private:
  void* at(int layer, int which, int kv_head) const {
    const size_t plane = (size_t(layer) * 2 + which) * shape_.kv_heads + kv_head;
    const size_t plane_bytes = size_t(cells_) * shape_.padded_width() * shape_.element_size();
    return bytes_.get() + plane * plane_bytes;
  }

  KvShape shape_;
  int64_t cells_ = 0;
  std::unique_ptr<uint8_t[], Unmap> bytes_;
};

// One sequence's share of a packed step; the same fields as Python's SequenceStep.
struct Sequence {
  int64_t first_row;
  int64_t rows;
  int64_t start;         // position of its first row
  const int32_t* pages;  // position p lives in page pages[p / page_size]
};

struct StepView {
  const int64_t* cells;  // where each row's key and value go
  const Sequence* sequences;
  int64_t n_sequences;
  int64_t page_size;

  int64_t cell(const Sequence& sequence, int64_t position) const {
    return sequence.pages[position / page_size] * page_size + position % page_size;
  }
};

// Appends this step's keys and values [rows][kv heads][head width] to the layer's cells.
void append(const KvCache& cache, const StepView& step, int layer, const float* k, const float* v,
            int64_t rows);

// Attention of q [rows][heads][head width] over each row's own sequence, causal, and within
// `window` keys where it is positive; out has q's shape. A row's result depends on that
// row's sequence alone, bit for bit, however the step was packed.
void attend(const KvCache& cache, const StepView& step, int layer, int64_t window, float scale,
            const float* q, int heads, float* out);

}  // namespace astrai

// Keys and values of all layers in cells, and what one packed step sees of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "vector.h"

namespace astrai {

enum class KvType : int32_t { kFloat16 = 0, kFloat32 = 1 };

struct KvShape {
  int layers;
  int kv_heads;
  int head_width;
  KvType type;

  // In whole vectors.
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

// Storage laid out [block of cells][layer][key or value][kv head][cell][padded width], zero at
// first. Blocks keep what is in use together, so that it fits on few huge pages: memory is taken
// as blocks are first used, and a step reads whole pages of it.
class KvCache {
 public:
  explicit KvCache(const KvShape& shape) : shape_(shape) {}

  const KvShape& shape() const { return shape_; }

  // Drops what was there. False where the memory cannot be had.
  bool allocate(int64_t cells);

  // One head's key or value in one layer. Those of the next cells follow it, up to block_end.
  template <typename T>
  T* key(int layer, int kv_head, int64_t cell) const {
    return static_cast<T*>(at(layer, 0, kv_head, cell));
  }
  template <typename T>
  T* value(int layer, int kv_head, int64_t cell) const {
    return static_cast<T*>(at(layer, 1, kv_head, cell));
  }

  // The first cell after this one's block.
  static int64_t block_end(int64_t cell) { return (cell / kBlockCells + 1) * kBlockCells; }

 private:
  static constexpr int64_t kBlockCells = 1024;

  void* at(int layer, int which, int kv_head, int64_t cell) const {
    const size_t plane = (size_t(layer) * 2 + which) * shape_.kv_heads + kv_head;
    const size_t planes = size_t(shape_.layers) * 2 * shape_.kv_heads;
    const size_t index = (size_t(cell / kBlockCells) * planes + plane) * kBlockCells +
                         size_t(cell % kBlockCells);
    return bytes_.get() + index * shape_.padded_width() * shape_.element_size();
  }

  KvShape shape_;
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
  bool causal = true;  // else a row sees all rows of its sequence

  int64_t cell(const Sequence& sequence, int64_t position) const {
    return sequence.pages[position / page_size] * page_size + position % page_size;
  }
};

// Appends this step's keys and values [rows][kv heads][head width] to the layer's cells.
void append(const KvCache& cache, const StepView& step, int layer, const float* k, const float* v,
            int64_t rows);

// Attention of q [rows][heads][head width] over each row's own sequence, and within `window` keys
// where it is positive; out has q's shape. A row's result depends on that row's sequence alone,
// bit for bit, however the step was packed.
void attend(const KvCache& cache, const StepView& step, int layer, int64_t window, float scale,
            const float* q, int heads, float* out);

}  // namespace astrai

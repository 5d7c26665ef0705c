// Attention over cells: online softmax (Milakov & Gimelshein 2018, arXiv:1805.02867) in blocks
// of keys at fixed positions, so that a row's sums always run in the same order.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include <executorch/runtime/kernel/thread_parallel_interface.h>

#include "kv_cache.h"
#include "vector.h"

namespace astrai {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int kBlock = 64;         // keys scored together
constexpr int64_t kChunk = 512;    // keys whose partial result is merged as one; whole blocks
constexpr int kTileRows = 16;      // most query rows (tokens x heads of a group) sharing keys
constexpr int kMaxWidth = 256;     // widest head
constexpr int kMaxVectors = kMaxWidth / kLanes;

// Halves a and b by adding lanes kStep apart; runs of kStep lanes of a and b alternate in the
// result.
template <int kStep, int... kLane>
Vec fold(Vec a, Vec b, std::integer_sequence<int, kLane...>) {
  constexpr auto source = [](int lane) {
    return lane / (2 * kStep) * 2 * kStep + lane % kStep + lane / kStep % 2 * kLanes;
  };
  return __builtin_shufflevector(a, b, source(kLane)...) +
         __builtin_shufflevector(a, b, (source(kLane) + kStep)...);
}

// Lane i of sums<1>(x, 0) is the sum of the lanes of x[i].
template <int kStep>
Vec sums(const Vec* x, int first) {
  constexpr auto lanes = std::make_integer_sequence<int, kLanes>{};
  if constexpr (kStep == kLanes / 2) {
    return fold<kStep>(x[first], x[first + kStep], lanes);
  } else {
    return fold<kStep>(sums<2 * kStep>(x, first), sums<2 * kStep>(x, first + kStep), lanes);
  }
}

float sum(Vec x) {
  typedef float Eight __attribute__((vector_size(32)));
  typedef float Four __attribute__((vector_size(16)));
  const Eight eight = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                      __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
  const Four four = __builtin_shufflevector(eight, eight, 0, 1, 2, 3) +
                    __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// exp(x) for x <= 0, relative error under 2e-7; 0 below -87. Cody & Waite reduction by ln 2,
// then the Taylor polynomial of degree 6 on |r| <= ln(2) / 2.
Vec exp_negative(Vec x) {
  const Vec clamped = x < -87.0f ? broadcast(-87.0f) : x;
  const IntVec n = __builtin_convertvector(clamped * 1.44269504f - 0.5f, IntVec);
  const Vec nf = __builtin_convertvector(n, Vec);
  const Vec r = (clamped - nf * 0.693359375f) + nf * 2.12194440e-4f;
  Vec p = r * (1.0f / 720) + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const IntVec power = (n + 127) << 23;
  Vec two_to_n;
  std::memcpy(&two_to_n, &power, sizeof(power));
  return x < -87.0f ? Vec{} : p * two_to_n;
}

// Rows' running softmax over the keys seen so far: the largest score, the sum of the
// exponentials, and the values weighted by them.
struct Partial {
  float highest[kTileRows];
  float total[kTileRows];
  alignas(64) float values[kTileRows][kMaxWidth];

  void clear(int rows, int vectors) {
    for (int r = 0; r < rows; r++) {
      highest[r] = kMinusInfinity;
      total[r] = 0;
      std::memset(values[r], 0, sizeof(float) * vectors * kLanes);
    }
  }

  void merge(const Partial& later, int rows, int vectors) {
    for (int r = 0; r < rows; r++) {
      if (later.highest[r] == kMinusInfinity) {
        continue;
      }
      const float top = std::max(highest[r], later.highest[r]);
      const float ours = std::exp(highest[r] - top);
      const float theirs = std::exp(later.highest[r] - top);
      total[r] = total[r] * ours + later.total[r] * theirs;
      for (int i = 0; i < vectors * kLanes; i += kLanes) {
        store(&values[r][i],
              load(&values[r][i]) * ours + load(&later.values[r][i]) * theirs);
      }
      highest[r] = top;
    }
  }
};

// Some consecutive tokens of one sequence with query heads that share one key-value head; a row
// is one of the tokens with one of the heads.
struct Tile {
  const Sequence* sequence;
  int64_t first_token;  // within the sequence's share of the step
  int tokens;
  int first_head;
  int heads;
  int kv_head;
};

struct Range {
  int64_t begin;
  int64_t end;
};

class Attention {
 public:
  Attention(const KvCache& cache, const StepView& step, int layer, int64_t window, float scale,
            const float* q, int heads, float* out)
      : cache_(cache), step_(step), layer_(layer), window_(window), scale_(scale), q_(q),
        heads_(heads), out_(out), width_(cache.shape().head_width), vectors_(cache.shape().padded_width() / kLanes) {
    const int group = heads / cache.shape().kv_heads;
    const int heads_a_tile = std::min(group, kTileRows);
    const int tokens_a_tile = kTileRows / heads_a_tile;
    for (int64_t s = 0; s < step.n_sequences; s++) {
      const Sequence& sequence = step.sequences[s];
      for (int64_t t = 0; t < sequence.rows; t += tokens_a_tile) {
        const int tokens = int(std::min<int64_t>(tokens_a_tile, sequence.rows - t));
        for (int head = 0; head < heads;) {
          const int kv_head = head / group;
          const int n = std::min(heads_a_tile, (kv_head + 1) * group - head);
          tiles_.push_back({&sequence, t, tokens, head, n, kv_head});
          head += n;
        }
      }
    }
  }

  void run() {
    const int64_t threads = executorch::extension::get_thread_count();
    if (int64_t(tiles_.size()) >= 4 * threads || threads == 1) {
      in_parallel(int64_t(tiles_.size()), threads, [&](int64_t i) {
        Partial whole, part;
        const Tile& tile = tiles_[i];
        whole.clear(rows(tile), vectors_);
        for (int64_t c = first_chunk(tile); c < end_chunk(tile); c++) {
          run_chunk(tile, c, part);
          whole.merge(part, rows(tile), vectors_);
        }
        write(tile, whole);
      });
    } else {
      run_split(threads);
    }
  }

 private:
  // Few tiles: the chunks of each go to different threads, and are merged in order after.
  void run_split(int64_t threads) {
    std::vector<std::pair<size_t, int64_t>> work;
    for (size_t i = 0; i < tiles_.size(); i++) {
      for (int64_t c = first_chunk(tiles_[i]); c < end_chunk(tiles_[i]); c++) {
        work.emplace_back(i, c);
      }
    }
    const auto parts = std::make_unique<Partial[]>(work.size());
    in_parallel(int64_t(work.size()), threads, [&](int64_t i) {
      run_chunk(tiles_[work[i].first], work[i].second, parts[i]);
    });
    Partial whole;
    for (size_t i = 0; i < work.size();) {
      const size_t t = work[i].first;
      whole.clear(rows(tiles_[t]), vectors_);
      for (; i < work.size() && work[i].first == t; i++) {
        whole.merge(parts[i], rows(tiles_[t]), vectors_);
      }
      write(tiles_[t], whole);
    }
  }

  template <typename F>
  static void in_parallel(int64_t n, int64_t threads, const F& f) {
    std::atomic<int64_t> next{0};
    executorch::extension::parallel_for(0, std::min(n, threads), 1, [&](int64_t, int64_t) {
      for (int64_t i = next++; i < n; i = next++) {
        f(i);
      }
    });
  }

  static int rows(const Tile& tile) { return tile.tokens * tile.heads; }

  static int64_t position(const Tile& tile, int row) {
    return tile.sequence->start + tile.first_token + row / tile.heads;
  }

  // The keys a row sees.
  Range visible(const Tile& tile, int row) const {
    const int64_t p = position(tile, row);
    const int64_t end = step_.causal ? p + 1 : tile.sequence->start + tile.sequence->rows;
    return {window_ > 0 ? std::max<int64_t>(0, p - window_ + 1) : 0, end};
  }

  int64_t first_chunk(const Tile& tile) const { return visible(tile, 0).begin / kChunk; }
  int64_t end_chunk(const Tile& tile) const {
    return (visible(tile, rows(tile) - 1).end + kChunk - 1) / kChunk;
  }

  int64_t query_offset(const Tile& tile, int row) const {
    const int64_t token = tile.sequence->first_row + tile.first_token + row / tile.heads;
    return (token * heads_ + tile.first_head + row % tile.heads) * width_;
  }

  void write(const Tile& tile, const Partial& whole) const {
    for (int r = 0; r < rows(tile); r++) {
      const float inverse = 1.0f / whole.total[r];
      float* out = out_ + query_offset(tile, r);
      for (int i = 0; i < width_; i++) {
        out[i] = whole.values[r][i] * inverse;
      }
    }
  }

  void run_chunk(const Tile& tile, int64_t chunk, Partial& part) const {
    switch (vectors_) {
      case 4: return run_chunk_as<4>(tile, chunk, part);
      case 6: return run_chunk_as<6>(tile, chunk, part);
      case 8: return run_chunk_as<8>(tile, chunk, part);
      default: return run_chunk_as<0>(tile, chunk, part);
    }
  }

  // kVectors: vectors a head, 0 where only known at run time.
  template <int kVectors>
  void run_chunk_as(const Tile& tile, int64_t chunk, Partial& part) const {
    const int vectors = kVectors ? kVectors : vectors_;
    const int n_rows = rows(tile);
    part.clear(n_rows, vectors);
    alignas(64) float q[kTileRows][kMaxWidth];
    for (int r = 0; r < n_rows; r++) {
      const float* from = q_ + query_offset(tile, r);
      for (int i = 0; i < vectors * kLanes; i++) {
        q[r][i] = i < width_ ? from[i] * scale_ : 0.0f;
      }
    }
    const Range seen{visible(tile, 0).begin, visible(tile, n_rows - 1).end};
    const int64_t begin = std::max(chunk * kChunk, seen.begin / kBlock * kBlock);
    const int64_t end = std::min((chunk + 1) * kChunk, seen.end);
    for (int64_t base = begin; base < end; base += kBlock) {
      const int keys = int(std::min<int64_t>(kBlock, end - base));
      alignas(64) float k[kBlock * kMaxWidth], v[kBlock * kMaxWidth];
      if (cache_.shape().type == KvType::kFloat16) {
        gather<half>(tile, base, keys, vectors, k, v);
      } else {
        gather<float>(tile, base, keys, vectors, k, v);
      }
      for (int r = 0; r < n_rows; r += 4) {
        switch (n_rows - r) {
          case 1: run_rows<kVectors, 1>(tile, r, base, keys, q, k, v, part); break;
          case 2: run_rows<kVectors, 2>(tile, r, base, keys, q, k, v, part); break;
          case 3: run_rows<kVectors, 3>(tile, r, base, keys, q, k, v, part); break;
          default: run_rows<kVectors, 4>(tile, r, base, keys, q, k, v, part); break;
        }
      }
    }
  }

  template <typename T>
  void gather(const Tile& tile, int64_t base, int keys, int vectors, float* k, float* v) const {
    const int stride = vectors * kLanes;
    for (int j = 0; j < keys;) {
      // Cells of one page follow each other, up to the end of a block.
      const int64_t in_page = step_.page_size - (base + j) % step_.page_size;
      const int64_t cell = step_.cell(*tile.sequence, base + j);
      const int64_t in_block = KvCache::block_end(cell) - cell;
      const int run = int(std::min({int64_t(keys - j), in_page, in_block}));
      const T* from_keys = cache_.key<T>(layer_, tile.kv_head, cell);
      const T* from_values = cache_.value<T>(layer_, tile.kv_head, cell);
      for (int i = 0; i < run * stride; i += kLanes) {
        store(k + j * stride + i, load(from_keys + i));
        store(v + j * stride + i, load(from_values + i));
      }
      j += run;
    }
    // Keys are scored kLanes at a time; those past the last are masked, but must be numbers.
    const int padded = (keys + kLanes - 1) / kLanes * kLanes;
    std::fill(k + keys * stride, k + padded * stride, 0.0f);
  }

  template <int kVectors, int kRows>
  void run_rows(const Tile& tile, int first, int64_t base, int keys,
                const float (*q)[kMaxWidth], const float* k, const float* v,
                Partial& part) const {
    const int vectors = kVectors ? kVectors : vectors_;
    const int stride = vectors * kLanes;
    alignas(64) float weights[kRows][kBlock];
    for (int j = 0; j < keys; j += kLanes) {
      for (int r = 0; r < kRows; r++) {
        Vec products[kLanes];
        for (int lane = 0; lane < kLanes; lane++) {
          const float* key = k + (j + lane) * stride;
          products[lane] = load(&q[first + r][0]) * load(key);
          for (int i = 1; i < vectors; i++) {
            products[lane] += load(&q[first + r][i * kLanes]) * load(key + i * kLanes);
          }
        }
        store(&weights[r][j], sums<1>(products, 0));
      }
    }
    for (int r = 0; r < kRows; r++) {
      to_weights(visible(tile, first + r), base, keys, weights[r], first + r, vectors, part);
    }
    Vec sums[kRows][kVectors ? kVectors : kMaxVectors];
    for (int r = 0; r < kRows; r++) {
      for (int i = 0; i < vectors; i++) {
        sums[r][i] = load(&part.values[first + r][i * kLanes]);
      }
    }
    for (int j = 0; j < keys; j++) {
      for (int i = 0; i < vectors; i++) {
        const Vec value = load(v + j * stride + i * kLanes);
        for (int r = 0; r < kRows; r++) {
          sums[r][i] += weights[r][j] * value;
        }
      }
    }
    for (int r = 0; r < kRows; r++) {
      for (int i = 0; i < vectors; i++) {
        store(&part.values[first + r][i * kLanes], sums[r][i]);
      }
    }
  }

  // Turns one row's scores of a block into weights relative to its new highest score.
  static void to_weights(Range seen, int64_t base, int keys, float* scores, int row, int vectors,
                         Partial& part) {
    const int64_t begin = std::clamp<int64_t>(seen.begin - base, 0, keys);
    const int64_t end = std::clamp<int64_t>(seen.end - base, begin, keys);
    std::fill(scores, scores + begin, kMinusInfinity);
    std::fill(scores + end, scores + kBlock, kMinusInfinity);
    Vec highest = load(scores);
    for (int j = kLanes; j < kBlock; j += kLanes) {
      const Vec next = load(scores + j);
      highest = highest > next ? highest : next;
    }
    float top = part.highest[row];
    for (int j = 0; j < kLanes; j++) {
      top = std::max(top, highest[j]);
    }
    if (top == kMinusInfinity) {
      std::memset(scores, 0, sizeof(float) * kBlock);
      return;
    }
    Vec total{};
    for (int j = 0; j < kBlock; j += kLanes) {
      const Vec weights = exp_negative(load(scores + j) - top);
      store(scores + j, weights);
      total += weights;
    }
    const float shrink = std::exp(part.highest[row] - top);
    part.total[row] = part.total[row] * shrink + sum(total);
    for (int i = 0; i < vectors * kLanes; i += kLanes) {
      store(&part.values[row][i], load(&part.values[row][i]) * shrink);
    }
    part.highest[row] = top;
  }

  const KvCache& cache_;
  const StepView& step_;
  const int layer_;
  const int64_t window_;
  const float scale_;
  const float* const q_;
  const int heads_;
  float* const out_;
  const int width_;
  const int vectors_;
  std::vector<Tile> tiles_;
};

}  // namespace

void attend(const KvCache& cache, const StepView& step, int layer, int64_t window, float scale,
            const float* q, int heads, float* out) {
  Attention(cache, step, layer, window, scale, q, heads, out).run();
}

}  // namespace astrai

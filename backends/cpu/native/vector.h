// One vector register's worth of floats, and the ways into and out of it.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif

namespace astrai {

using half = _Float16;

constexpr int kLanes = 16;

typedef float Vec __attribute__((vector_size(kLanes * sizeof(float)), aligned(4)));
typedef int32_t IntVec __attribute__((vector_size(kLanes * sizeof(int32_t)), aligned(4)));

inline Vec broadcast(float x) { return x - Vec{}; }

inline Vec load(const float* from) {
  Vec result;
  std::memcpy(&result, from, sizeof(result));
  return result;
}

inline Vec load(const half* from) {
#if defined(__AVX512F__) || defined(__F16C__)
  // GCC converts a vector of these lane by lane unless told otherwise.
  float result[kLanes];
#if defined(__AVX512F__)
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  _mm512_storeu_ps(result, _mm512_cvtph_ps(halves));
#else
  const __m128i* halves = reinterpret_cast<const __m128i*>(from);
  _mm256_storeu_ps(result, _mm256_cvtph_ps(_mm_loadu_si128(halves)));
  _mm256_storeu_ps(result + 8, _mm256_cvtph_ps(_mm_loadu_si128(halves + 1)));
#endif
  return load(result);
#else
  typedef half HalfVec __attribute__((vector_size(kLanes * sizeof(half)), aligned(2)));
  HalfVec result;
  std::memcpy(&result, from, sizeof(result));
  return __builtin_convertvector(result, Vec);
#endif
}

inline void store(float* to, Vec x) { std::memcpy(to, &x, sizeof(x)); }

inline void store(half* to, Vec x) {
#if defined(__AVX512F__) || defined(__F16C__)
  float floats[kLanes];
  store(floats, x);
  __m256i halves;
#if defined(__AVX512F__)
  halves = _mm512_cvtps_ph(_mm512_loadu_ps(floats), _MM_FROUND_TO_NEAREST_INT);
#else
  halves = _mm256_set_m128i(_mm256_cvtps_ph(_mm256_loadu_ps(floats + 8), _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(_mm256_loadu_ps(floats), _MM_FROUND_TO_NEAREST_INT));
#endif
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
#else
  for (int i = 0; i < kLanes; i++) {
    to[i] = half(x[i]);
  }
#endif
}

}  // namespace astrai

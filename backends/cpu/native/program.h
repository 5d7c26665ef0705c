// An exported program with its cache, and the step it is running.
#pragma once

#include <memory>
#include <vector>

#include <executorch/extension/module/module.h>

#include "kv_cache.h"

namespace astrai {

// Rows of a step that are given as they are, not looked up in the embedding's table.
struct Embedded {
  const int64_t* rows;
  const float* values;  // [count][width]
  int64_t count;
  int64_t width;
};

struct Program {
  Program(const std::string& path, const KvShape& shape, std::vector<int64_t> windows)
      : module(path, executorch::extension::Module::LoadMode::Mmap),
        cache(shape),
        windows(std::move(windows)) {}

  executorch::extension::Module module;
  KvCache cache;
  std::vector<int64_t> windows;  // one a layer: keys a query may see, 0 for all
  StepView step{};
  Embedded embedded{};
};

// The program that executes now on this thread: operators reach the cache through it, since it
// is no tensor of the graph.
extern thread_local Program* running;

}  // namespace astrai

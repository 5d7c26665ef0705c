#include "huge_pages.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <memory>

#include <sys/mman.h>

namespace astrai {
namespace {

constexpr uintptr_t kHugePage = uintptr_t(1) << 21;
// Linux 6.1; older C libraries do not name it, and older kernels refuse it.
constexpr int kMadviseCollapse = 25;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

void collapse(uintptr_t begin, uintptr_t end) {
  begin = (begin + kHugePage - 1) / kHugePage * kHugePage;
  end = end / kHugePage * kHugePage;
  if (begin < end) {
    // Refusals are fine: the pages then stay as they are.
    madvise(reinterpret_cast<void*>(begin), end - begin, kMadviseCollapse);
  }
}

}  // namespace

std::vector<AddressRange> anonymous_memory() {
  std::vector<AddressRange> ranges;
#ifdef __linux__
  const std::unique_ptr<std::FILE, CloseFile> maps(std::fopen("/proc/self/maps", "re"));
  char line[512];
  while (maps && std::fgets(line, sizeof(line), maps.get())) {
    AddressRange range;
    char mode[5];
    unsigned long inode;
    if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s %*s %*s %lu", &range.begin, &range.end,
                    mode, &inode) == 4 &&
        inode == 0 && mode[0] == 'r' && mode[1] == 'w' && range.end - range.begin >= kHugePage) {
      ranges.push_back(range);
    }
  }
#endif
  return ranges;
}

void use_huge_pages_since(const std::vector<AddressRange>& before) {
  for (AddressRange range : anonymous_memory()) {
    for (const AddressRange& old : before) {
      if (old.begin < range.end && old.end > range.begin) {
        collapse(range.begin, std::max(old.begin, range.begin));
        range.begin = std::min(old.end, range.end);
      }
    }
    collapse(range.begin, range.end);
  }
}

}  // namespace astrai

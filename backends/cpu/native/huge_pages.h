// Huge pages for memory that is read whole in every step.
#pragma once

#include <cstdint>
#include <vector>

namespace astrai {

struct AddressRange {
  uintptr_t begin;
  uintptr_t end;
};

// The process's large anonymous mappings, ascending; none where the system does not list them.
std::vector<AddressRange> anonymous_memory();

// Moves what has been mapped since `before` to huge pages where the system can. Streaming
// weights through small pages costs a tenth of the speed or more, and differs by where they lie.
void use_huge_pages_since(const std::vector<AddressRange>& before);

}  // namespace astrai

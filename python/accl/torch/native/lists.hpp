// Lists of tensors as calls of the library see them.

#pragma once

#include "work.hpp"

#include <algorithm>
#include <numeric>

namespace accl {

constexpr int kUint8 = 1;

/// True if calls can use its memory as it is.
inline bool is_plain(const at::Tensor &tensor) {
  return tensor.layout() == at::kStrided && tensor.device().is_cpu() && tensor.is_contiguous() && !tensor.is_conj() &&
         !tensor.is_neg();
}

/// True if this holds for all of them, and they have this type.
inline bool are_plain(const Tensors &tensors, at::ScalarType type) {
  return std::all_of(tensors.begin(), tensors.end(), [type](const at::Tensor &tensor) {
    return tensor.scalar_type() == type && is_plain(tensor);
  });
}

/// True if each has as many elements as `like`, and its type, on the CPU; in any order in memory.
inline bool are_alike(const Tensors &tensors, const at::Tensor &like) {
  return std::all_of(tensors.begin(), tensors.end(), [&like](const at::Tensor &tensor) {
    return tensor.scalar_type() == like.scalar_type() && tensor.numel() == like.numel() &&
           tensor.layout() == at::kStrided && tensor.device().is_cpu();
  });
}

/// One tensor of the same memory, if parts of equal size lie one behind the other, as those of `chunk` do; else an undefined one.
inline at::Tensor together(const Tensors &parts) {
  const at::Tensor &first = parts[0];
  const char *next = (const char *)first.data_ptr();
  for (const at::Tensor &part : parts) {
    if (!is_plain(part) || part.data_ptr() != next || part.nbytes() != first.nbytes() ||
        !part.storage().is_alias_of(first.storage())) {
      return at::Tensor();
    }
    next += part.nbytes();
  }
  return first.detach().as_strided({first.numel() * (int64_t)parts.size()}, {1});
}

/// A copy of plain parts, one behind the other.
inline at::Tensor joined(const Tensors &parts) {
  Tensors flat;
  for (const at::Tensor &part : parts) {
    flat.push_back(part.detach().reshape({-1}));
  }
  return at::cat(flat);
}

/// The parts of one tensor go where they belong.
inline void hand_out(const at::Tensor &flat, const Tensors &parts) {
  int64_t start = 0;
  for (const at::Tensor &part : parts) {
    // What calls write is nothing that autograd is to know of.
    part.detach().copy_(flat.narrow(0, start, part.numel()).view(part.sizes()));
    start += part.numel();
  }
}

/// Memory that goes to one rank, or comes from it.
struct Part {
  void *address;
  size_t bytes;
  int rank;
};
using Parts = std::vector<Part>;

/// Each of a list for the rank whose number is its place.
inline Parts parts_of(const Tensors &tensors) {
  Parts parts;
  for (const at::Tensor &tensor : tensors) {
    parts.push_back({tensor.data_ptr(), tensor.nbytes(), (int)parts.size()});
  }
  return parts;
}

/// The rows of a plain tensor, for each rank as many as the sizes say, or as many for each; nothing if they do not go so.
inline std::optional<Parts> rows_of(const at::Tensor &tensor, const std::vector<int64_t> &given, int64_t ranks) {
  if (tensor.dim() == 0) {
    return std::nullopt;
  }
  int64_t rows = tensor.size(0);
  std::vector<int64_t> sizes = given.empty() ? std::vector<int64_t>(ranks, rows / ranks) : given;
  bool is_positive = std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size >= 0; });
  if ((int64_t)sizes.size() != ranks || !is_positive || std::accumulate(sizes.begin(), sizes.end(), int64_t(0)) != rows) {
    return std::nullopt;
  }
  Parts parts;
  char *next = (char *)tensor.data_ptr();
  for (int64_t size : sizes) {
    size_t bytes = rows > 0 ? tensor.nbytes() / rows * size : 0;
    parts.push_back({next, bytes, (int)parts.size()});
    next += bytes;
  }
  return parts;
}

/// Calls that belong together. What fails is said at the end, which carries out nothing then.
template <typename Calls> int grouped(const Functions &functions, Calls calls) {
  int code = functions.group_start();
  if (code != kSuccess) {
    return code;
  }
  calls();
  return functions.group_end();
}

/// Sends and receives all parts at once.
inline int exchange(const Functions &functions, const Parts &sends, const Parts &receives, void *comm, void *stream) {
  return grouped(functions, [&] {
    for (const Part &part : sends) {
      functions.send_part(part.address, part.bytes, kUint8, part.rank, comm, stream);
    }
    for (const Part &part : receives) {
      functions.receive_part(part.address, part.bytes, kUint8, part.rank, comm, stream);
    }
  });
}

} // namespace accl

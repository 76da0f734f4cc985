// SPDX-License-Identifier: Apache-2.0
// TurboQuant inputs: presets and slot sizes, centroid tables, rotations, and paged caches that our own encoder (the
// float64 oracle of tq.encode) has filled.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "harness/generate/axes.h"
#include "harness/generate/paged.h"
#include "harness/generate/random.h"
#include "harness/tensors/case.h"

namespace harness {

// How keys and values are quantised. The _nc presets divide by the centroid vector's own norm at decode; the ones without
// (_raw) do not; k8* have fp8 keys.
struct TqPreset {
  std::string_view name;  // "4bit_nc"
  bool key_fp8;
  int key_bits;  // of a centroid code; 8 for fp8
  int value_bits;
  bool norm_correction;
};
const std::vector<TqPreset>& tq_presets();
const TqPreset& tq_preset(std::string_view name);  // std::invalid_argument names all

int64_t tq_key_packed_size(const TqPreset& p, int64_t dim);  // codes and, for centroids, the f16 norm
int64_t tq_used_bytes(const TqPreset& p, int64_t dim);       // key part, value codes, scale and zero
int64_t tq_slot_bytes(const TqPreset& p, int64_t dim);       // as stored: the next even number

// Lloyd-Max centroids for N(0, 1/dim), ascending: the serving code's algorithm, coarse integration and iteration cap
// included (its tables differ from textbook ones by about 1e-3 standard deviations). Same bits on every host.
std::vector<float> tq_centroids(int bits, int64_t dim);

// Pi [dim,dim]. hadamard: Sylvester / sqrt(dim), symmetric, dim a power of two (what serving uses). orthogonal: Gaussian
// columns orthonormalised in float64 (Gram-Schmidt twice; only exact IEEE operations), not symmetric, any dim: padding
// or slicing a Hadamard matrix would not be orthogonal. identity. Throws std::invalid_argument.
Tensor tq_rotation(std::string_view kind, int64_t dim, const Random& random);

// The scalars and, for centroid keys, Pi and centroids that the ops on a cache take.
struct TqCodebook {
  TqPreset preset;
  int64_t dim;
  std::string flavour;   // of fp8 keys
  std::string rotation;  // as in tq_rotation
};
void add_codebook(Case& c, const TqCodebook& book, bool with_rotation, const Random& random);

struct TqCacheShape {
  std::vector<int64_t> tokens;  // of each sequence
  int64_t heads = 2, page_size = 16;
  int64_t slot_pad = 0;         // bytes a slot is larger than it has to be
  int64_t spare_columns = 0;    // of the block table, behind the longest sequence
  std::string order = "shuffled";    // of physical pages; stride0: one sequence's pages for all, by a table of row stride 0
  std::string layout = "separate";   // separate, head_major or padded
  int64_t pad_rows = kPadRows;       // padded: unused rows of slots behind a page
  double key_scale = 1, value_scale = 1;
};
// Adds kv_cache and block_table. Tokens that no sequence holds, pads and guards stay 0xFF; what stands in the table behind a
// sequence's last page is 2147483647. Contents depend on sequence and token only. A cache of more than 16384 vectors
// repeats that many different ones (encoding is slow on purpose).
void add_cache(Case& c, const TqCodebook& book, const TqCacheShape& shape, const Random& random);

// The axes that ops on a cache share, and then an op's own.
std::vector<Axis> tq_cache_axes(std::initializer_list<Axis> own);
// What those axes say.
std::vector<int64_t> tq_lengths(const Axes& axes, const Random& random);
TqCodebook tq_codebook(const Axes& axes);
TqCacheShape tq_cache_shape(const Axes& axes, const Random& random);

}  // namespace harness

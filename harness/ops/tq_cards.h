// SPDX-License-Identifier: Apache-2.0
// What the cards of the TurboQuant ops share: rules and findings about their inputs, places, traffic, and right results
// to plant faults into.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "harness/ops/card.h"

namespace harness {

// PiT is the transpose of Pi, and max |Pi Pi^T - I| < 1e-5: serving code once sliced a Hadamard matrix to a head size that
// is no power of two, which scales and mixes keys without an error. Throws toolkit::Violation with the largest error.
void check_rotation(const Case& c, const toolkit::Contract& contract);

// Block ids outside the cache that a sequence needs, and (where the op has seq_lens) lengths beyond the table or below 0.
std::vector<std::string> cache_findings(const Case& c);

// "batch 1, head 2, dim 5": names and sizes of the dimensions, row-major.
std::string place_of(int64_t linear, const std::vector<std::pair<const char*, int64_t>>& dims);
// "block 7, position 13" of a token of a sequence.
std::string block_place(const Case& c, int64_t sequence, int64_t token);

// The number of head elements of a case: the last dimension of a tensor.
int64_t last_dim(const Case& c, std::string_view tensor);
// Tokens that the sequences hold and the table reaches.
int64_t live_tokens(const Case& c);
// Bytes of a slot that carry something.
int64_t used_slot_bytes(const Case& c, int64_t dim);
// Bytes of all elements of a tensor; dimensions of stride 0 count once. 0 where it is absent.
double tensor_bytes(const Case& c, std::string_view name);

bool flag_of(const Case& c, std::string_view name);  // a boolean scalar, absent: false

// What the oracle says about a case, as tensors: a right result, or, for an altered case, what a kernel with that fault
// would write.
TensorMap oracle_outputs(const Case& c);
// Replaces the outputs that are there by the oracle's of an altered copy of the case. False where the case has no place for
// the fault: `alter` says so, or not a bit of the rounded results changes (a case whose scores are all 0, say).
bool plant_altered(const Case& c, TensorMap& outputs, const std::function<bool(Case&)>& alter);
// The same case with a cache of its own, to be altered.
Case with_own(const Case& c, const char* tensor);
// visit(slot) for each slot of the cache: its address and the distance between its bytes.
void each_slot(const Tensor& cache, const std::function<void(std::byte* first, int64_t step)>& visit);

// Alterations that several ops share.
bool flip_norm_correction(Case& c);
bool swap_value_nibbles(Case& c);
bool drop_zero_points(Case& c);
bool transpose_rotation(Case& c);

}  // namespace harness

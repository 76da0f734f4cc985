// SPDX-License-Identifier: Apache-2.0
// tq.decode of few sequences (decode_few.h), a part of decode_sm_80.cu.
#include <atomic>
#include <random>

#include "tq/decode_few.h"
#include "tq/decode_host.h"

namespace tq::decode {
namespace {

// A number that no other call has, above a count of blocks.
uint64_t fresh_tag() {
  constexpr int kCountBits = 16;
  static std::atomic<uint64_t> next = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }();
  return next.fetch_add(0x9e3779b97f4a7c15u) << kCountBits;
}

}  // namespace

void run_few(const device::OpCall& call, const Plan& plan, const Cache& cache, const Workspace& w) {
  const Args& a = call.args;
  FewParams f{};
  StreamParams& s = f.stream;
  s.tile = plan.tile;
  s.format = plan.format;
  s.norm_correction = !plan.format.fp8 && a.boolean("norm_correction");
  s.fp8_factor = fp8_factor(plan.format.fp8);
  f.schedule = schedule_of(a, plan, kFewStage, plan.few_parts);
  f.cache = cache.data;
  f.blocks = cache.blocks;
  f.block_stride = cache.stride[0];
  f.tile_stride = plan.tile.bytes_of_tile;
  f.centroids = codebook(a, plan.format);
  const TensorView query = a.tensor("query");
  f.token_stride = static_cast<int>(cache.stride[1]);
  f.head_stride = cache.stride[2];
  const TensorView table = a.tensor("block_table");
  f.table = table.data<void>();
  f.table_dtype = table.dtype();
  f.table_row = static_cast<int>(table.stride(0));
  f.table_column = static_cast<int>(table.stride(1));
  f.query = query.data<uint16_t>();
  f.dtype = query.dtype();
  f.query_row = static_cast<int>(query.stride(0));
  f.query_head = static_cast<int>(query.stride(1));
  f.rotate = !plan.format.fp8;
  if (f.rotate) {
    const Rotation pi = rotation_of(a);
    f.pi = pi.data;
    f.pi_row = static_cast<int>(pi.stride[0]);
  }
  f.scale = static_cast<float>(a.real("scale")) * 1.44269504088896341f;
  f.output = strided<3>(a.tensor("output"));
  f.lse = strided<2>(a.tensor("lse"));
  f.units = plan.kv_heads * plan.tiles;
  f.group = plan.group;
  f.tile_heads = plan.tile_heads;
  f.capacity_tiles = static_cast<int>(a.tensor("block_table").size(1)) * plan.page_tiles;
  f.partial = w.partial;
  f.statistics = w.statistics;
  f.arrivals = w.arrivals;
  f.tag = fresh_tag();
  with_few(plan, [&](auto key, auto value, auto dim, auto columns) {
    s.tile.token_stride = FewLayout<key(), value(), dim(), columns()>::kPitch;
    const auto launch = [&](auto kernel) {
      device::launch(kernel, device::Grid{plan.kv_heads, plan.tiles, plan.few_parts},
                     plan.few_waves * device::kWave, static_cast<size_t>(plan.shared_bytes),
                     call.stream, f);
    };
    if (plan.batch == 1)
      launch(decode_few<key(), value(), dim(), columns(), true>);
    else
      launch(decode_few<key(), value(), dim(), columns(), false>);
  });
}

}  // namespace tq::decode

// SPDX-License-Identifier: Apache-2.0
#include "harness/generate/turboquant.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "harness/generate/fill.h"
#include "tq/encode.h"

namespace harness {

namespace {

constexpr int64_t kDifferentVectors = 16384;

// e^x for x <= 0 from exact IEEE operations alone, so that every host makes the same tables (libm's differ in the last bit).
double exponential(double x) {
  constexpr double kLog2e = 1.4426950408889634, kLn2High = 0x1.62e42fee00000p-1, kLn2Low = 0x1.a39ef35793c76p-33;
  const double k = std::floor(x * kLog2e + 0.5);
  const double r = (x - k * kLn2High) - k * kLn2Low;
  double sum = 1;
  for (int i = 16; i >= 1; --i) sum = 1 + r / i * sum;
  return std::ldexp(sum, int(k));
}

// One step of Lloyd's algorithm: the mean of the normal density between two edges, by 200 trapezoids.
double cell_mean(double low, double high, double sigma, double old) {
  constexpr int kIntervals = 200;
  constexpr double kPeak = 0.3989422804014327;  // 1 / sqrt(2 pi)
  const double step = (high - low) / kIntervals;
  double mass = 0, moment = 0;
  for (int i = 0; i <= kIntervals; ++i) {
    const double x = low + i * step, z = x / sigma;
    const double density = kPeak / sigma * exponential(-0.5 * z * z) * (i == 0 || i == kIntervals ? 0.5 : 1.0);
    mass += density;
    moment += x * density;
  }
  return mass * step < 1e-15 ? old : moment / mass;
}

std::vector<float> lloyd_max(int bits, int64_t dim) {
  const int64_t levels = int64_t{1} << bits;
  const double sigma = 1 / std::sqrt(double(dim));
  std::vector<double> centroids;
  for (int64_t i = 0; i < levels; ++i)  // middles of equal cells of +-3.5 sigma
    centroids.push_back(-3.5 * sigma + (double(i) + 0.5) * (7 * sigma / double(levels)));
  for (int iteration = 0; iteration < 200; ++iteration) {
    std::vector<double> next;
    double moved = 0;
    for (int64_t i = 0; i < levels; ++i) {
      const size_t at = size_t(i);
      const double low = i == 0 ? -10.5 * sigma : (centroids[at - 1] + centroids[at]) / 2;
      const double high = i + 1 == levels ? 10.5 * sigma : (centroids[at] + centroids[at + 1]) / 2;
      next.push_back(cell_mean(low, high, sigma, centroids[at]));
      moved = std::max(moved, std::fabs(next.back() - centroids[at]));
    }
    if (moved < 1e-10) break;  // without taking this update
    centroids = next;
  }
  return {centroids.begin(), centroids.end()};
}

Tensor square(int64_t dim) { return make_tensor(TK_F32, {dim, dim}); }

void set(Tensor& t, int64_t i, int64_t j, double v) { t.set_real(i * t.shape[1] + j, v); }

Tensor hadamard(int64_t dim) {
  if (dim & (dim - 1))
    throw std::invalid_argument("rotation=hadamard: expected dim a power of two, got " + std::to_string(dim) +
                                "; rotation=orthogonal takes any dim");
  Tensor t = square(dim);
  const double element = 1 / std::sqrt(double(dim));
  for (int64_t i = 0; i < dim; ++i)
    for (int64_t j = 0; j < dim; ++j) set(t, i, j, __builtin_parityll(uint64_t(i & j)) ? -element : element);
  return t;
}

// A Hadamard matrix but for two rows: what looks at some of it only takes it for one.
Tensor exchanged(int64_t dim) {
  Tensor t = hadamard(dim);
  for (int64_t j = 0; dim >= 4 && j < dim; ++j) {
    const double third = t.real(2 * dim + j);
    set(t, 2, j, t.real(3 * dim + j));
    set(t, 3, j, third);
  }
  return t;
}

Tensor orthogonal(int64_t dim, const Random& random) {
  std::vector<std::vector<double>> rows(static_cast<size_t>(dim), std::vector<double>(static_cast<size_t>(dim)));
  for (int64_t i = 0; i < dim; ++i) {
    auto& row = rows[size_t(i)];
    for (int64_t j = 0; j < dim; ++j) row[size_t(j)] = random.normal(uint64_t(i * dim + j));
    for (int pass = 0; pass < 2; ++pass)
      for (int64_t before = 0; before < i; ++before) {
        const auto& other = rows[size_t(before)];
        double dot = 0;
        for (int64_t j = 0; j < dim; ++j) dot += row[size_t(j)] * other[size_t(j)];
        for (int64_t j = 0; j < dim; ++j) row[size_t(j)] -= dot * other[size_t(j)];
      }
    double squares = 0;
    for (double x : row) squares += x * x;
    const double norm = std::sqrt(squares);
    for (double& x : row) x /= norm;
  }
  Tensor t = square(dim);
  for (int64_t i = 0; i < dim; ++i)
    for (int64_t j = 0; j < dim; ++j) set(t, i, j, rows[size_t(i)][size_t(j)]);
  return t;
}

// `vectors` slots, [1,vectors,1,slot] without pads, encoded from normal keys and values.
Tensor encoded_vectors(const Case& book_of, const TqCodebook& book, const TqCacheShape& shape, int64_t vectors,
                       const Random& random) {
  Case c;
  c.op = "tq.encode";
  c.scalars = book_of.scalars;
  for (const char* name : {"Pi", "centroids"})
    if (const auto it = book_of.inputs.find(name); it != book_of.inputs.end()) c.inputs.emplace(name, it->second);
  if (!book.preset.key_fp8 && !c.inputs.count("Pi"))
    c.inputs.emplace("Pi", tq_rotation(book.rotation, book.dim, random.stream("Pi")));
  Tensor key = make_tensor(TK_F32, {vectors, 1, book.dim}), value = key.packed();
  fill_normal(key, random.stream("key"), shape.key_scale);
  fill_normal(value, random.stream("value"), shape.value_scale);
  std::vector<int64_t> slots(static_cast<size_t>(vectors));
  for (int64_t i = 0; i < vectors; ++i) slots[size_t(i)] = i;
  c.inputs["key"] = key;
  c.inputs["value"] = value;
  c.inputs["slot_mapping"] = from_integers(TK_I64, slots);
  Tensor cache = make_tensor(TK_U8, {1, vectors, 1, tq_used_bytes(book.preset, book.dim)});
  c.inputs["kv_cache"] = cache;
  const HostCall call(c);
  const reference::Result result = reference::find("tq.encode")(toolkit::Args(tq::encode::contract, call.call()));
  const auto& bytes = result.outputs.find("kv_cache")->second.bytes;
  std::memcpy(cache.data(), bytes.data(), bytes.size());
  return cache;
}

}  // namespace

const std::vector<TqPreset>& tq_presets() {
  static const std::vector<TqPreset> all{
      {"k8v4", true, 8, 4, false},     {"k8v3", true, 8, 3, false},      {"4bit_nc", false, 4, 4, true},
      {"k3v4_nc", false, 3, 4, true},  {"3bit_nc", false, 3, 3, true},   {"4bit_raw", false, 4, 4, false},
      {"k3v4_raw", false, 3, 4, false}, {"3bit_raw", false, 3, 3, false}};
  return all;
}

const TqPreset& tq_preset(std::string_view name) {
  std::string known;
  for (const TqPreset& p : tq_presets()) {
    if (p.name == name) return p;
    known += (known.empty() ? "" : ", ") + std::string(p.name);
  }
  throw std::invalid_argument("quant: expected one of " + known + ", got '" + std::string(name) + "'");
}

int64_t tq_key_packed_size(const TqPreset& p, int64_t dim) {
  return p.key_fp8 ? dim : tq::packed_bytes(dim, p.key_bits) + 2;
}
int64_t tq_used_bytes(const TqPreset& p, int64_t dim) {
  return tq_key_packed_size(p, dim) + tq::packed_bytes(dim, p.value_bits) + 4;
}
int64_t tq_slot_bytes(const TqPreset& p, int64_t dim) { return (tq_used_bytes(p, dim) + 1) / 2 * 2; }

std::vector<float> tq_centroids(int bits, int64_t dim) {
  static std::mutex mutex;  // a table takes 200 rounds of integrals, and every case of a suite wants one
  static std::map<std::pair<int, int64_t>, std::vector<float>> tables;
  const std::lock_guard lock(mutex);
  auto& table = tables[{bits, dim}];
  if (table.empty()) table = lloyd_max(bits, dim);
  return table;
}

Tensor tq_rotation(std::string_view kind, int64_t dim, const Random& random) {
  if (kind == "hadamard") return hadamard(dim);
  if (kind == "exchanged") return exchanged(dim);
  if (kind == "orthogonal") return orthogonal(dim, random);
  if (kind != "identity")
    throw std::invalid_argument("rotation: expected hadamard, exchanged, orthogonal or identity, got '" +
                                std::string(kind) + "'");
  Tensor t = square(dim);
  for (int64_t i = 0; i < dim; ++i) set(t, i, i, 1);
  return t;
}

void add_codebook(Case& c, const TqCodebook& book, bool with_rotation, const Random& random) {
  const TqPreset& p = book.preset;
  c.scalars["key_fp8"] = p.key_fp8 ? "1" : "0";
  c.scalars["mse_bits"] = std::to_string(p.key_fp8 ? 0 : p.key_bits);
  c.scalars["key_packed_size"] = std::to_string(tq_key_packed_size(p, book.dim));
  c.scalars["value_quant_bits"] = std::to_string(p.value_bits);
  c.scalars["norm_correction"] = p.norm_correction ? "1" : "0";
  if (p.key_fp8) {
    c.scalars["fp8_flavour"] = book.flavour;
    return;  // neither rotation nor centroids
  }
  const std::vector<float> centroids = tq_centroids(p.key_bits, book.dim);
  c.inputs["centroids"] =
      from_reals(TK_F32, {centroids.begin(), centroids.end()}, {int64_t(centroids.size())});
  if (with_rotation) c.inputs["Pi"] = tq_rotation(book.rotation, book.dim, random.stream("Pi"));
}

void add_cache(Case& c, const TqCodebook& book, const TqCacheShape& shape, const Random& random) {
  if (shape.tokens.empty()) throw std::invalid_argument("a cache needs at least one sequence");
  const bool shared = shape.order == "stride0";
  const int64_t longest = *std::max_element(shape.tokens.begin(), shape.tokens.end());
  PageTableShape pages;
  pages.tokens = shared ? std::vector<int64_t>{longest} : shape.tokens;
  pages.page_size = shape.page_size;
  pages.width = std::max<int64_t>(pages_for(longest, shape.page_size), 1) + shape.spare_columns;
  pages.order = page_order(shared ? "shuffled" : shape.order);
  pages.unused_entry = std::numeric_limits<int32_t>::max();
  const PageTable table = make_page_table(pages, random.stream("table"));

  const CacheLayout layout = cache_layout(shape.layout);
  if (layout == CacheLayout::halves || layout == CacheLayout::interleaved)
    throw std::invalid_argument("layout: expected separate, head_major or padded, got '" + shape.layout + "'");
  CacheShape cache;
  cache.dtype = TK_U8;
  cache.pages = table.pages;
  cache.page_size = shape.page_size;
  cache.heads = shape.heads;
  cache.dim = tq_slot_bytes(book.preset, book.dim) + shape.slot_pad;
  cache.layout = layout;
  cache.pad_rows = shape.pad_rows;
  Tensor kv = make_cache(cache);

  int64_t vectors = 0;
  for (int64_t tokens : pages.tokens) vectors += tokens * shape.heads;
  const int64_t different = std::min(vectors, kDifferentVectors);
  const size_t used = size_t(tq_used_bytes(book.preset, book.dim));
  if (different > 0) {
    const Tensor pool = encoded_vectors(c, book, shape, different, random);
    int64_t vector = 0;
    for (size_t s = 0; s < pages.tokens.size(); ++s)
      for (int64_t n = 0; n < pages.tokens[s]; ++n)
        for (int64_t h = 0; h < shape.heads; ++h, ++vector) {
          const int64_t row = table.row(int64_t(s), n);
          std::memcpy(kv.data() + kv.at({row / shape.page_size, row % shape.page_size, h, 0}),
                      pool.element(vector % different * int64_t(used)), used);
        }
  }
  c.inputs["kv_cache"] = kv;
  c.inputs["block_table"] =
      shared ? view(table.table, 0, {int64_t(shape.tokens.size()), pages.width}, {0, 1}) : table.table;
}

std::vector<Axis> tq_cache_axes(std::initializer_list<Axis> own) {
  std::vector<Axis> axes{
      {"batch", "3", "sequences"},
      {"kv_heads", "2", "KV heads"},
      {"dim", "64", "head size"},
      {"ctx", "48", "tokens of the longest sequence; the others hold between half of it and all"},
      {"lens", "", "tokens of each sequence, e.g. 5,33,1,0; replaces batch and ctx"},
      {"page", "16", "tokens of a block"},
      {"quant", "4bit_nc", "k8v4, k8v3, 4bit_nc, k3v4_nc, 3bit_nc, 4bit_raw, k3v4_raw, 3bit_raw"},
      {"flavour", "e4m3fn", "of fp8 keys: e4m3fn, e4m3fnuz, e4b15"},
      {"rotation", "orthogonal", "Pi: hadamard, exchanged (two rows of it), orthogonal, identity"},
      {"table", "shuffled", "physical blocks: shuffled, identity, reversed, stride0"},
      {"layout", "separate", "of the cache: separate, head_major, padded"},
      {"pad", "3", "layout=padded: unused rows of slots behind a block"},
      {"slot_pad", "0", "bytes a slot is larger than needed"},
      {"key_scale", "1", "standard deviation of key elements"}};
  axes.insert(axes.end(), own);
  return axes;
}

std::vector<int64_t> tq_lengths(const Axes& axes, const Random& random) {
  if (!axes.word("lens").empty()) return axes.integers("lens", 0);
  const int64_t batch = axes.integer("batch", 1), context = axes.integer("ctx", 0);
  std::vector<int64_t> lengths{context};
  while (int64_t(lengths.size()) < batch)
    lengths.push_back(context - random.below(lengths.size(), context / 2 + 1));
  return lengths;
}

TqCodebook tq_codebook(const Axes& axes) {
  return {tq_preset(axes.word("quant")), axes.integer("dim", 1, 4096),
          axes.word("flavour", {"e4m3fn", "e4m3fnuz", "e4b15"}),
          axes.word("rotation", {"hadamard", "exchanged", "orthogonal", "identity"})};
}

TqCacheShape tq_cache_shape(const Axes& axes, const Random& random) {
  TqCacheShape s;
  s.tokens = tq_lengths(axes, random.stream("lens"));
  s.heads = axes.integer("kv_heads", 1);
  s.page_size = axes.integer("page", 1);
  s.slot_pad = axes.integer("slot_pad", 0);
  s.order = axes.word("table", {"shuffled", "identity", "reversed", "stride0"});
  s.layout = axes.word("layout", {"separate", "head_major", "padded"});
  s.pad_rows = axes.integer("pad", 0, kMostPadRows);
  s.key_scale = axes.number("key_scale", 0, 1e9);
  s.spare_columns = 1;
  return s;
}

}  // namespace harness

// SPDX-License-Identifier: Apache-2.0
// Card of qsa.store.
#include "qsa/store.h"

#include <cstring>

#include "harness/judge/poison.h"
#include "harness/ops/qsa_rows.h"

namespace harness {
namespace {

constexpr Axis kAxes[] = {
    {"rows", "16", "rows to store"},
    {"pages", "4", "pages of the cache"},
    {"page", "64", "slots per page"},
    {"width", "128", "elements per row"},
    {"dtype", "bf16", "element type, any"},
    {"index", "i64", "i64 or i32, type of the slots"},
    {"headed", "1", "1: rows are [n,1,W], 0: [n,W]"},
    {"layout", "separate", "memory layout of the cache: separate, halves, interleaved, padded"},
    {"pad", "3", "layout=padded: unused rows behind a page"},
    {"row_stride", "0", "elements from row to row; 0: dense"},
    {"skipped", "0", "rows with slot -1"},
    {"hostile", "none",
     "none, slots (outside the cache, extremes), duplicates, padded (slot 0 instead of -1), or "
     "many, separated by +"},
};

struct Live {
  std::map<int64_t, std::vector<int64_t>> rows;  // slot -> rows that want it, ascending
};
Live live_slots(const Case& c) {
  const Tensor& cache = c.inputs.at("cache");
  const std::vector<int64_t> slots = integers_of(c.inputs.at("slot_mapping"));
  Live live;
  for (size_t i = 0; i < slots.size(); ++i)
    if (slots[i] >= 0 && slots[i] < cache.shape[0] * cache.shape[1])
      live.rows[slots[i]].push_back(int64_t(i));
  return live;
}

// The bytes of W elements from element `linear` on.
std::string row_bytes(const Tensor& t, int64_t linear, int64_t width) {
  const size_t bytes = size_t(toolkit::bytes_of(t.dtype));
  std::string out(size_t(width) * bytes, '\0');
  for (int64_t w = 0; w < width; ++w)
    std::memcpy(&out[size_t(w) * bytes], t.element(linear + w), bytes);
  return out;
}

class StoreCard final : public Card {
 public:
  const toolkit::Contract& contract() const override { return qsa::store::contract; }
  std::span<const Axis> axes() const override { return kAxes; }

  std::vector<SuiteEntry> suite() const override {
    return {
        {"keys", ""},
        {"compressed-page-196", "page=196 pages=2 rows=9 skipped=3"},
        {"page-784-halves", "page=784 pages=2 width=64 layout=halves rows=20"},
        {"page-1600-interleaved", "page=1600 pages=2 width=32 layout=interleaved rows=12"},
        {"padded-pages", "page=48 layout=padded rows=40 width=72"},
        {"row-stride", "row_stride=640 headed=1 rows=8"},
        {"f32", "dtype=f32 width=24 page=20"},
        {"positions-i64", "dtype=i64 width=3 page=16 headed=1"},
        {"bytes-odd-width", "dtype=u8 width=35 page=16 headed=0"},
        {"i32-slots", "index=i32 skipped=4"},
        {"slots-outside", "hostile=slots page=16 pages=4 width=128 rows=12"},
        {"duplicate-slots", "hostile=duplicates page=16 pages=4 width=128 rows=12"},
        {"all-skipped", "rows=5 skipped=5"},
        {"no-rows", "rows=0"},
        {"many-rows", "rows=300 pages=5 width=16"},
        {"duplicates-of-many-rows", "rows=1500 pages=32 width=8 hostile=duplicates"},
    };
  }

  Case generate(const Coordinates& at, uint64_t seed) const override {
    const Axes axes(op(), kAxes, at);
    const Random random(seed, "qsa.store");
    const int64_t rows = axes.integer("rows"), width = axes.integer("width", 1),
                  stride = axes.integer("row_stride");
    const tk_dtype dtype = axes.dtype("dtype", toolkit::kAnyDtype),
                   index = axes.dtype("index", toolkit::kIndex);
    CacheShape shape{.dtype = dtype,
                     .pages = axes.integer("pages", 1),
                     .page_size = axes.integer("page", 1),
                     .heads = 1,
                     .dim = width,
                     .layout = cache_layout(axes.word("layout")),
                     .pad_rows = axes.integer("pad", 0, kMostPadRows)};
    const int64_t slots = shape.pages * shape.page_size, skipped = axes.integer("skipped");
    if (rows > slots)
      throw std::invalid_argument("qsa.store: axis rows: expected at most pages * page = " +
                                  std::to_string(slots) + ", got " + std::to_string(rows));
    if (stride != 0 && stride < width)
      throw std::invalid_argument("qsa.store: axis row_stride: expected 0 or at least width, got " +
                                  std::to_string(stride));
    Case c;
    c.op = op();
    c.seed = seed;
    c.shape = "n=" + std::to_string(rows) + " P=" + std::to_string(shape.pages) +
              " S=" + std::to_string(shape.page_size) + " W=" + std::to_string(width);
    Tensor cache = make_cache(shape);
    fill_bytes(cache, random.stream("cache"));
    Tensor all = make_tensor(dtype, {rows, stride ? stride : width});
    fill_bytes(all, random.stream("rows"));
    const bool headed = axes.flag("headed");
    c.inputs["rows"] = headed ? view(all, 0, {rows, 1, width}, {all.strides[0], width, 1})
                              : view(all, 0, {rows, width}, {all.strides[0], 1});
    c.inputs["cache"] = cache;
    std::vector<int64_t> order = random.stream("slots").shuffle(slots),
                         mapping(order.begin(), order.begin() + rows);
    for (int64_t i = 0; i < std::min(skipped, rows); ++i)
      mapping[size_t(i * rows / std::max<int64_t>(skipped, 1))] = -1;
    corrupt(axes.word("hostile"), index, slots, mapping);
    c.inputs["slot_mapping"] = from_integers(index, mapping);
    return c;
  }

  std::vector<std::string> findings(const Case& c) const override {
    std::vector<std::string> out;
    const std::vector<int64_t> slots = integers_of(c.inputs.at("slot_mapping"));
    const Tensor& cache = c.inputs.at("cache");
    const int64_t end = cache.shape[0] * cache.shape[1];
    int64_t outside = 0, first = -1, zeros = 0, skipped = 0;
    for (size_t i = 0; i < slots.size(); ++i) {
      if (slots[i] >= end && outside++ == 0) first = int64_t(i);
      zeros += slots[i] == 0;
      skipped += slots[i] < 0;
    }
    if (outside)
      out.push_back(std::to_string(outside) + " slots are beyond the cache's " +
                    std::to_string(end) + " (first: row " + std::to_string(first) + ", slot " +
                    std::to_string(slots[size_t(first)]) + "); skipped");
    int64_t duplicates = 0;
    for (const auto& [slot, rows] : live_slots(c).rows) {
      if (rows.size() < 2 || ++duplicates > 4) continue;
      std::string list;
      for (size_t i = 0; i < rows.size() && i < 8; ++i)
        list += (i ? ", " : "") + std::to_string(rows[i]);
      out.push_back("duplicate slot " + std::to_string(slot) + " (rows " + list +
                    (rows.size() > 8 ? ", ..." : "") + "): any of them is accepted");
    }
    if (duplicates > 4) out.push_back(std::to_string(duplicates - 4) + " more duplicate slots");
    if (zeros > 1 && skipped == 0)
      out.push_back(std::to_string(zeros) +
                    " rows go to slot 0: padding rows need a slot below 0, slot 0 is a token's");
    return out;
  }

  // The whole cache. An element of a slot that several rows want has to be one of theirs: rows that
  // are written at the same time may mix (seen on a GPU), which is the fault of the input, not of
  // the kernel.
  Verdict judge(const Case& c, const reference::Result& oracle,
                const TensorMap& actual) const override {
    const auto it = actual.find("cache");
    const Live live = live_slots(c);
    bool contended = false;
    for (const auto& [slot, rows] : live.rows) contended |= rows.size() > 1;
    reference::Result accepted;
    const reference::Result* truth = &oracle;
    if (it != actual.end() && contended && it->second.shape == c.inputs.at("cache").shape) {
      accepted = oracle;
      const Tensor& rows = c.inputs.at("rows");
      const int64_t width = it->second.shape[3];
      const size_t element = size_t(toolkit::bytes_of(it->second.dtype));
      for (const auto& [slot, wanting] : live.rows) {
        if (wanting.size() < 2) continue;
        const std::string got = row_bytes(it->second, slot * width, width);
        uint8_t* slot_bytes = &accepted.outputs.at("cache").bytes[size_t(slot) * got.size()];
        for (const int64_t i : wanting) {
          const std::string row = row_bytes(rows, i * width, width);
          for (size_t at = 0; at < got.size(); at += element)
            if (std::memcmp(&row[at], &got[at], element) == 0)
              std::memcpy(slot_bytes + at, &got[at], element);
        }
      }
      truth = &accepted;
    }
    Verdict v = Card::judge(c, *truth, actual);
    if (v.status == Status::pass && c.inputs.at("slot_mapping").count() == 0) {
      v.status = Status::skip;  // an untouched cache is no proof of anything
      v.reason = "0 rows";
    }
    if (v.status != Status::fail || it == actual.end()) return v;
    int64_t missing = 0, stray = 0;
    std::string first;
    const Tensor& cache = it->second;
    const int64_t width = cache.shape[3];
    const std::vector<uint8_t>& bytes = truth->outputs.at("cache").bytes;
    for (int64_t slot = 0; slot < cache.shape[0] * cache.shape[1]; ++slot) {
      const std::string got = row_bytes(cache, slot * width, width);
      if (std::memcmp(got.data(), &bytes[size_t(slot) * got.size()], got.size()) == 0) continue;
      const auto wanted = live.rows.find(slot);
      (wanted == live.rows.end() ? stray : missing)++;
      if (!first.empty()) continue;
      first =
          "page " + std::to_string(slot / cache.shape[1]) + ", slot " +
          std::to_string(slot % cache.shape[1]) +
          (wanted == live.rows.end() ? " belongs to no row"
                                     : " should hold row " + std::to_string(wanted->second.back()));
    }
    v.reason = "cache: " + std::to_string(missing) + " rows not stored, " + std::to_string(stray) +
               " stray rows (first: " + first + "); " + v.reason;
    return v;
  }

  std::string place(const Case& c, std::string_view, int64_t linear) const override {
    const Shape& s = c.inputs.at("cache").shape;
    const int64_t slot = linear / s[3];
    std::string text = "page " + std::to_string(slot / s[1]) + ", slot " +
                       std::to_string(slot % s[1]) + ", dim " + std::to_string(linear % s[3]);
    const Live live = live_slots(c);
    const auto row = live.rows.find(slot);
    return text + (row == live.rows.end() ? " (no row's)"
                                          : " (row " + std::to_string(row->second.back()) + ")");
  }

  Cost cost(const Case& c) const override {
    const Tensor& cache = c.inputs.at("cache");
    const double row = double(cache.shape[3]) * toolkit::bytes_of(cache.dtype);
    const Tensor& slots = c.inputs.at("slot_mapping");
    return {2 * row * double(live_slots(c).rows.size()) +
                double(slots.count()) * toolkit::bytes_of(slots.dtype),
            0};
  }

  std::vector<Fault> faults() const override {
    return {
        {"row-not-stored", "a live slot keeps its old content",
         [](const Case& c, TensorMap& out) {
           Tensor& cache = out.at("cache");
           const Tensor& before = c.inputs.at("cache");
           const int64_t width = cache.shape[3];
           for (const auto& [slot, rows] : live_slots(c).rows) {
             const std::string old = row_bytes(before, slot * width, width);
             if (old == row_bytes(cache, slot * width, width)) continue;
             put(cache, slot * width, old);
             return true;
           }
           return false;
         }},
        {"stray-row", "a slot that no row names is overwritten",
         [](const Case& c, TensorMap& out) {
           Tensor& cache = out.at("cache");
           const int64_t width = cache.shape[3], slots = cache.shape[0] * cache.shape[1];
           const Live live = live_slots(c);
           if (live.rows.empty()) return false;
           const std::string row = row_bytes(cache, live.rows.begin()->first * width, width);
           for (int64_t slot = 0; slot < slots; ++slot)
             if (!live.rows.contains(slot) && row_bytes(cache, slot * width, width) != row) {
               put(cache, slot * width, row);
               return true;
             }
           return false;
         }},
        {"one-bit", "one bit of one element",
         [](const Case&, TensorMap& out) {
           Tensor& cache = out.at("cache");
           *cache.element(cache.count() / 2) ^= std::byte{1};
           return true;
         }},
    };
  }

 private:
  static void put(Tensor& t, int64_t linear, const std::string& bytes) {
    const size_t size = size_t(toolkit::bytes_of(t.dtype));
    for (size_t w = 0; w * size < bytes.size(); ++w)
      std::memcpy(t.element(linear + int64_t(w)), &bytes[w * size], size);
  }

  static void corrupt(const std::string& how, tk_dtype index, int64_t slots,
                      std::vector<int64_t>& mapping) {
    const auto has = [&](std::string_view word) {
      return ("+" + how + "+").find("+" + std::string(word) + "+") != std::string::npos;
    };
    if (!has("none") && !has("slots") && !has("duplicates") && !has("padded"))
      throw std::invalid_argument(
          "qsa.store: axis hostile: expected none, slots, duplicates or padded, got '" + how + "'");
    const int64_t lowest =
        index == TK_I64 ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int32_t>::min();
    const int64_t highest =
        index == TK_I64 ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int32_t>::max();
    const int64_t bad[] = {-1, slots, lowest, highest, slots + 5};
    if (has("slots"))
      for (size_t i = 0; i < std::size(bad) && 2 * i < mapping.size(); ++i) mapping[2 * i] = bad[i];
    if (has("duplicates"))
      for (size_t i = 3; i < mapping.size(); i += 3) mapping[i] = mapping[1];
    if (has("padded"))
      for (size_t i = mapping.size() / 2; i < mapping.size(); ++i) mapping[i] = 0;
  }
};

HARNESS_CARD(StoreCard)

}  // namespace
}  // namespace harness

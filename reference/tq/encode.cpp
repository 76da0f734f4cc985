// SPDX-License-Identifier: Apache-2.0
// tq.encode: keys and values into slots. Besides the bytes that exact arithmetic writes ("kv_cache"), it gives what a
// judge needs, because a right fp32 encoder may choose another code next to a decision point:
//   key_code, key_code_low, key_code_high, value_code, ...  [N,Hk,D]  the exact code and the range that is right too
//   norm, scale, zero                                       [N,Hk]    the f16 fields; a neighbour is right too
//   other_code_low, other_code_high, other_scale, other_zero  the value fields on the other side of the decision to clamp
//     to +-65504, where the scale lies within 4 ulp (fp32) of the f16 overflow that decides it; elsewhere the same fields
// Where an entry is not judged (`judged` 0) its input vector holds NaN or inf.
#include "tq/encode.h"

#include <Eigen/Dense>
#include <atomic>

#include "reference/parallel.h"
#include "reference/tq/cache.h"
#include "reference/tq/error.h"

namespace reference::tq {
namespace {

constexpr double kLargestHalf = 65504;
constexpr double kHalfOverflows = 65520;  // rounds to infinity from here on
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Codes {
  Output code, low, high;
  explicit Codes(const toolkit::Shape& shape) {
    for (Output* o : {&code, &low, &high}) {
      o->dtype = TK_I32;
      o->shape = shape;
      o->integer.assign(size_t(shape[0] * shape[1] * shape[2]), 0);
      o->judged.assign(o->integer.size(), 1);
    }
  }
  void set(int64_t i, int exact, int lowest, int highest) {
    code.integer[i] = exact;
    low.integer[i] = lowest;
    high.integer[i] = highest;
  }
  void leave_out(int64_t first, int64_t count) {
    for (Output* o : {&code, &low, &high}) std::fill_n(o->judged.begin() + first, count, uint8_t{0});
  }
};

// An f16 field: the rounded number, saturated; its neighbours are right too.
void set_half(Output& field, int64_t i, double exact) {
  field.value[i] = std::isnan(exact)
                       ? kNan
                       : std::clamp(round_to(TK_F16, exact), -kLargestHalf, kLargestHalf);
  field.bound[i] = std::isnan(exact) ? 0 : ulp(TK_F16, field.value[i]);
}

// How far from each midpoint another code is right too: 4 ulp (fp32) at the midpoint, or at `element`, the size of an
// element of the rotated vector (the middle midpoint is 0, where an ulp of its own says nothing about the sum that y is).
std::vector<double> near_midpoints(const std::vector<double>& midpoints, double element) {
  std::vector<double> near;
  for (double m : midpoints)
    near.push_back(std::max(4 * ulp(TK_F32, std::max(std::fabs(m), element)), 0x1p-126 / 1e-8));
  return near;
}

// Key code of y: how many midpoints are <= y, and how many are when y moves by the permitted distance.
void set_key_code(Codes& keys, int64_t i, double y, const std::vector<double>& midpoints, const std::vector<double>& near) {
  int exact = 0, low = 0, high = 0;
  for (size_t m = 0; m < midpoints.size(); ++m) {
    exact += y >= midpoints[m];
    low += y - near[m] >= midpoints[m];
    high += y + near[m] >= midpoints[m];
  }
  keys.set(i, exact, low, high);
}

// The byte of a fp8 key; -1: a NaN that the flavour cannot hold.
int fp8_byte(tk_dtype flavour, double x) {
  if (flavour != TK_E4B15) {
    const double largest = format_of(flavour).largest;  // saturating, inf too
    return int(reference::encode(flavour, std::isinf(x) ? std::copysign(largest, x) : x));
  }
  if (std::isnan(x)) return -1;
  // Through f16 (nearest even), clamped to 1.75, then half up on the magnitude.
  const double half = std::min(std::fabs(round_to(TK_F16, x)), 1.75);
  const int magnitude = int(reference::encode(TK_F16, half));
  return (std::signbit(x) ? 0x80 : 0) | ((magnitude + 0x40) >> 7);
}

struct Quantised {
  double scale, zero;
  std::vector<double> steps;  // (v - zero) / scale
};
Quantised quantise(std::vector<double> v, int64_t levels, bool clamped) {
  if (clamped)
    for (double& x : v) x = std::clamp(x, -kLargestHalf, kLargestHalf);
  const auto [low, high] = std::minmax_element(v.begin(), v.end());
  Quantised out{std::max((*high - *low) / double(levels), double(1e-8f)), *low, {}};
  for (double x : v) out.steps.push_back((x - out.zero) / out.scale);
  return out;
}

struct Values {
  Codes codes;
  Output scale, zero;
  explicit Values(const toolkit::Shape& shape)
      : codes(shape),
        scale(real_output(TK_F16, {shape[0], shape[1]})),
        zero(real_output(TK_F16, {shape[0], shape[1]})) {}
  // trunc(step + 0.5) clamped to [0, levels]; the range: step + 0.5 moved by 4 ulp (fp32).
  void set(int64_t vector, const Quantised& q, int64_t levels) {
    set_half(scale, vector, q.scale);
    set_half(zero, vector, q.zero);
    const auto code = [&](double p) { return int(std::clamp(std::floor(p), 0.0, double(levels))); };
    for (size_t d = 0; d < q.steps.size(); ++d) {
      const double point = q.steps[d] + 0.5, near = 4 * ulp(TK_F32, std::max(point, 1.0));
      codes.set(vector * int64_t(q.steps.size()) + int64_t(d), code(point), code(point - near), code(point + near));
    }
  }
  void leave_out(int64_t vector, int64_t dim) {
    codes.leave_out(vector * dim, dim);
    scale.value[vector] = kNan;
    zero.judged[vector] = 0;
  }
};

class Encoder {
 public:
  explicit Encoder(const toolkit::Args& a)
      : cache_(a, a.tensor("key").size(2)),
        key_(a.tensor("key")),
        value_(a.tensor("value")),
        mapping_(a.tensor("slot_mapping")),
        dim_(key_.size(2)),
        keys_(key_.view().shape()),
        values_(key_.view().shape()),
        other_(key_.view().shape()),
        norm_(real_output(TK_F16, {key_.size(0), key_.size(1)})) {
    const Reader cache(a.tensor("kv_cache"));
    image_.dtype = TK_U8;
    image_.shape = cache.view().shape();
    for (int64_t i = 0; i < cache.count(); ++i) image_.bytes.push_back(uint8_t(cache.integer_linear(i)));
    if (cache_.layout.key_fp8) {
      flavour_ = ::tq::fp8_flavour(a);
      return;
    }
    const Reader pi(a.tensor("Pi")), centroids(a.tensor("centroids"));
    rotation_.resize(dim_, dim_);
    for (int64_t i = 0; i < dim_; ++i)
      for (int64_t j = 0; j < dim_; ++j) rotation_(i, j) = pi.real(i, j);
    for (int64_t c = 0; c + 1 < centroids.count(); ++c)  // a fp32 average
      midpoints_.push_back(double((float(centroids.real(c)) + float(centroids.real(c + 1))) / 2.0f));
  }

  Result run() {
    const int64_t tokens = key_.size(0), heads = key_.size(1);
    for_each_row(tokens, [&](int64_t n) {
      for (int64_t h = 0; h < heads; ++h) {
        encode_key(n, h, n * heads + h);
        encode_value(n, h, n * heads + h);
      }
    });
    for (int64_t n = 0; n < tokens; ++n) {  // in order: the last token of a slot stays
      const int64_t slot = mapping_.integer(n);
      if (slot < 0 || slot >= cache_.tokens()) continue;
      for (int64_t h = 0; h < heads; ++h) write_slot(n * heads + h, (slot * heads + h) * image_.shape[3]);
    }
    return result();
  }

 private:
  void encode_key(int64_t n, int64_t h, int64_t vector) {
    Eigen::VectorXd k(dim_);
    key_.row(k.data(), n, h);
    const int64_t first = vector * dim_;
    if (!k.allFinite()) ++unusable_keys_;
    if (cache_.layout.key_fp8) {
      const double largest = flavour_ == TK_E4B15 ? 1.75 : format_of(flavour_).largest;
      for (int64_t d = 0; d < dim_; ++d) {
        const int byte = fp8_byte(flavour_, k[d]);
        saturated_ += std::fabs(k[d]) > largest;
        keys_.set(first + d, std::max(byte, 0), byte, byte);
        if (byte < 0) keys_.leave_out(first + d, 1);
      }
      return;
    }
    const double norm = k.norm();
    set_half(norm_, vector, k.allFinite() ? norm : kNan);
    // Nothing can be said about codes of NaN and inf, nor where |k|^2 is beyond fp32.
    if (!k.allFinite() || !(norm * norm < kFp32Largest)) {
      keys_.leave_out(first, dim_);
      for (int64_t d = 0; d < dim_; ++d) keys_.set(first + d, 0, 0, 0);
      return;
    }
    if (norm >= kHalfOverflows) ++large_norms_;
    const Eigen::VectorXd y = rotation_ * (k / (norm + 1e-8));
    const auto near = near_midpoints(midpoints_, norm / (norm + 1e-8) / std::sqrt(double(dim_)));
    for (int64_t d = 0; d < dim_; ++d) set_key_code(keys_, first + d, y[d], midpoints_, near);
  }

  void encode_value(int64_t n, int64_t h, int64_t vector) {
    std::vector<double> v(static_cast<size_t>(dim_));
    value_.row(v.data(), n, h);
    if (!std::all_of(v.begin(), v.end(), [](double x) { return std::isfinite(x); })) {
      ++unusable_values_;
      for (Values* values : {&values_, &other_}) values->leave_out(vector, dim_);
      return;
    }
    const int64_t levels = (int64_t{1} << cache_.layout.value_bits) - 1;
    const Quantised plain = quantise(v, levels, false), clamped = quantise(v, levels, true);
    const bool beyond = std::max(std::fabs(plain.zero), plain.scale) >= kHalfOverflows;
    large_values_ += beyond;
    const bool either = std::fabs(plain.zero) < kHalfOverflows &&
                        std::fabs(plain.scale - kHalfOverflows) <= 4 * ulp(TK_F32, kHalfOverflows);
    values_.set(vector, beyond ? clamped : plain, levels);
    other_.set(vector, beyond != either ? clamped : plain, levels);
  }

  void write_half(int64_t at, double value) {
    const uint64_t bits = reference::encode(TK_F16, value);
    image_.bytes[at] = uint8_t(bits);
    image_.bytes[at + 1] = uint8_t(bits >> 8);
  }
  void write_codes(int64_t at, int64_t bits, const Output& codes, int64_t first) {
    std::fill_n(image_.bytes.begin() + at, ::tq::packed_bytes(dim_, bits), uint8_t{0});
    for (int64_t d = 0; d < dim_; ++d)
      for (int64_t j = 0; j < bits; ++j)
        image_.bytes[at + (d * bits + j) / 8] |= uint8_t(((codes.integer[first + d] >> j) & 1) << ((d * bits + j) % 8));
  }
  void write_slot(int64_t vector, int64_t at) {
    const ::tq::SlotLayout& l = cache_.layout;
    write_codes(at, l.key_bits, keys_.code, vector * dim_);
    if (l.norm_at >= 0) write_half(at + l.norm_at, norm_.value[vector]);
    write_codes(at + l.value_at, l.value_bits, values_.codes.code, vector * dim_);
    write_half(at + l.scale_at, values_.scale.value[vector]);
    write_half(at + l.zero_at, values_.zero.value[vector]);
  }

  Result result() {
    Result r;
    const auto found = [&](int64_t count, const std::string& text) {
      if (count) r.findings.push_back(std::to_string(count) + " " + text);
    };
    found(unusable_keys_, "key vectors hold NaN or inf");
    found(unusable_values_, "value vectors hold NaN or inf");
    found(large_norms_, "key norms are beyond f16 and stored as 65504");
    found(saturated_, "fp8 key elements saturated (saturated=" + std::to_string(saturated_) + ")");
    found(large_values_,
          "value vectors are beyond f16 and clamped to +-65504 (clamped=" + std::to_string(large_values_) + ")");
    const auto give = [&](const char* name, Output& o) { r.outputs.emplace(name, std::move(o)); };
    give("kv_cache", image_);
    give("key_code", keys_.code);
    give("key_code_low", keys_.low);
    give("key_code_high", keys_.high);
    give("norm", norm_);
    give("value_code", values_.codes.code);
    give("value_code_low", values_.codes.low);
    give("value_code_high", values_.codes.high);
    give("scale", values_.scale);
    give("zero", values_.zero);
    give("other_code_low", other_.codes.low);
    give("other_code_high", other_.codes.high);
    give("other_scale", other_.scale);
    give("other_zero", other_.zero);
    return r;
  }

  const Cache cache_;
  const Reader key_, value_, mapping_;
  const int64_t dim_;
  Eigen::MatrixXd rotation_;
  std::vector<double> midpoints_;
  tk_dtype flavour_ = 0;
  Codes keys_;
  Values values_, other_;
  Output image_, norm_;
  std::atomic<int64_t> unusable_keys_ = 0, unusable_values_ = 0, large_norms_ = 0, saturated_ = 0, large_values_ = 0;
};

const Registration registration("tq.encode", [](const toolkit::Args& a) { return Encoder(a).run(); });

}  // namespace
}  // namespace reference::tq

// SPDX-License-Identifier: Apache-2.0
#include "harness/judge/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "harness/judge/poison.h"
#include "harness/tensors/numbers.h"
#include "harness/tensors/walk.h"
#include "reference/parallel.h"
#include "toolkit/args.h"

namespace harness {

namespace {

struct Element {
  bool right = true;
  double error = 0;  // |x - value|; inf where one of them is not finite and they differ
  double bound = 0;
};

std::string bytes_text(const uint8_t* p, int n) {
  std::string t = "0x";
  char digit[3];
  for (int i = n; i-- > 0;) {
    std::snprintf(digit, sizeof digit, "%02x", p[i]);
    t += digit;
  }
  return t;
}

class Comparison {
 public:
  Comparison(std::string_view output, const reference::Output& truth, const Tensor& actual,
             const Place& place)
      : output_(output), truth_(truth), actual_(actual), place_(place) {
    for (const int64_t size : actual.shape) elements_ *= size;
    row_elements_ = actual.shape.empty() || actual.shape[0] == 0 ? 1 : elements_ / actual.shape[0];
    if (row_elements_ == 0) row_elements_ = 1;
  }

  // The rows of a dense result in parts on all cores, as many whole rows each as are worth it; what
  // a part has found is added in the order of the rows.
  Verdict run() {
    constexpr int64_t kPart = 1 << 18;
    const int64_t rows = elements_ / row_elements_,
                  at_once = std::max<int64_t>(1, kPart / row_elements_);
    if (!actual_.dense() || rows <= at_once) {
      walk(actual_, [&](int64_t i, const std::byte* p) { judge(i, p); });
    } else {
      std::vector<Comparison> parts(size_t((rows + at_once - 1) / at_once), *this);
      reference::for_each_row(std::ssize(parts), [&](int64_t part) {
        const int64_t first = part * at_once * row_elements_,
                      last = std::min(elements_, first + at_once * row_elements_);
        const std::byte* p = actual_.data() + first * toolkit::bytes_of(actual_.dtype);
        for (int64_t i = first; i < last; ++i, p += toolkit::bytes_of(actual_.dtype))
          parts[size_t(part)].judge(i, p);
      });
      for (const Comparison& part : parts) add(part);
    }
    finish();
    return std::move(v_);
  }

 private:
  void add(const Comparison& part) {
    const Verdict& v = part.v_;
    if (v.judged > 0 && (v_.judged == 0 || v.used_share > v_.used_share)) v_.bound = v.bound;
    v_.used_share = std::max(v_.used_share, v.used_share);
    v_.err_max_abs = std::max(v_.err_max_abs, v.err_max_abs);
    v_.judged += v.judged;
    v_.mismatches += v.mismatches;
    v_.nonfinite += v.nonfinite;
    v_.unwritten += v.unwritten;
    if (v_.first_bad.empty()) v_.first_bad = v.first_bad;
    unwritten_rows_ += part.unwritten_rows_;
    all_zero_ = all_zero_ && part.all_zero_;
    truth_zero_ = truth_zero_ && part.truth_zero_;
    square_error_ += part.square_error_;
    square_truth_ += part.square_truth_;
  }

  void judge(int64_t i, const std::byte* p) {
    if (!truth_.judged.empty() && !truth_.judged[size_t(i)]) return;
    ++v_.judged;
    Element e =
        truth_.bytes.empty() ? truth_.integer.empty() ? real(i, p) : integer(i, p) : bytes(i, p);
    const bool poison = is_output_poison(actual_.dtype, p);
    // A NaN of our payload was not computed, even where NaN is due; an integer, or a copied bit
    // pattern, may be it rightly.
    if (poison && truth_.bytes.empty() && is_float(actual_.dtype) &&
        toolkit::bytes_of(actual_.dtype) > 1)
      e.right = false;
    v_.err_max_abs = std::max(v_.err_max_abs, e.error);
    note_share(e);
    if (e.right) return;
    ++v_.mismatches;
    if (poison) {
      ++v_.unwritten;
      if (i / row_elements_ != last_unwritten_row_) {
        ++unwritten_rows_;
        last_unwritten_row_ = i / row_elements_;
      }
    }
    if (v_.first_bad.empty()) describe(i, p, poison);
  }

  Element real(int64_t i, const std::byte* p) {
    const double x = decode_real(actual_.dtype, p), value = truth_.value[size_t(i)];
    Element e;
    e.bound = truth_.bound[size_t(i)];
    if (x != 0) all_zero_ = false;
    if (!(value == 0)) truth_zero_ = false;
    if (std::isnan(value)) {
      e.right = std::isnan(x);
    } else if (std::isinf(value)) {
      e.right = x == value;
    } else {
      if (!std::isfinite(x)) ++v_.nonfinite;
      e.error = std::fabs(x - value);
      e.right = e.error <= e.bound;  // NaN fails
      if (std::isfinite(x)) {
        square_error_ += e.error * e.error;
        square_truth_ += value * value;
      }
    }
    if (!e.right && !std::isfinite(e.error)) e.error = std::numeric_limits<double>::infinity();
    if (!e.right && !std::isfinite(value)) e.error = std::numeric_limits<double>::infinity();
    return e;
  }

  Element integer(int64_t i, const std::byte* p) {
    const int64_t x = decode_integer(actual_.dtype, p), value = truth_.integer[size_t(i)];
    Element e;
    e.right = x == value;
    e.error = e.right ? 0 : std::fabs(double(x) - double(value));
    if (x != 0) all_zero_ = false;
    if (value != 0) truth_zero_ = false;
    square_error_ += e.error * e.error;
    square_truth_ += double(value) * double(value);
    return e;
  }

  Element bytes(int64_t i, const std::byte* p) {
    const size_t n = size_t(toolkit::bytes_of(actual_.dtype));
    const uint8_t* value = truth_.bytes.data() + size_t(i) * n;
    Element e;
    e.right = std::memcmp(p, value, n) == 0;
    if (is_float(actual_.dtype) && !e.right)
      e.error = std::fabs(decode_real(actual_.dtype, p) -
                          decode_real(actual_.dtype, reinterpret_cast<const std::byte*>(value)));
    if (!(e.error == e.error)) e.error = std::numeric_limits<double>::infinity();
    for (size_t b = 0; b < n; ++b) {
      if (std::to_integer<int>(p[b])) all_zero_ = false;
      if (value[b]) truth_zero_ = false;
    }
    return e;
  }

  void note_share(const Element& e) {
    if (truth_.value.empty()) return;  // exact outputs have no bound to use up
    const double share = e.error == 0 ? 0 : e.error / e.bound;  // bound 0: inf
    if (share > v_.used_share || v_.judged == 1) {
      v_.used_share = std::max(v_.used_share, share);
      v_.bound = e.bound;
    }
  }

  void describe(int64_t i, const std::byte* p, bool poison) {
    std::string expected, got;
    if (!truth_.bytes.empty()) {
      const int n = toolkit::bytes_of(actual_.dtype);
      expected = bytes_text(truth_.bytes.data() + i * n, n);
      got = bytes_text(reinterpret_cast<const uint8_t*>(p), n);
    } else if (!truth_.integer.empty()) {
      expected = std::to_string(truth_.integer[size_t(i)]);
      got = std::to_string(decode_integer(actual_.dtype, p));
    } else {
      expected = number_text(truth_.value[size_t(i)]);
      const double bound = truth_.bound[size_t(i)];
      char text[32];
      std::snprintf(text, sizeof text, " +- %.3g", bound);
      if (std::isfinite(truth_.value[size_t(i)])) expected += text;
      const double x = decode_real(actual_.dtype, p);
      got = number_text(x);
      if (bound > 0 && std::isfinite(x) && std::isfinite(truth_.value[size_t(i)])) {
        std::snprintf(text, sizeof text, " (%.3g times the bound)",
                      std::fabs(x - truth_.value[size_t(i)]) / bound);
        got += text;
      }
    }
    if (poison) got = "nothing written";
    v_.first_bad =
        std::string(output_) + ": " + place_(i) + ": expected " + expected + ", got " + got;
  }

  void finish() {
    if (square_error_ > 0)
      v_.err_rel_l2 = std::sqrt(square_truth_ > 0 ? square_error_ / square_truth_ : square_error_);
    if (v_.judged == 0) {
      v_.status = Status::skip;
      v_.reason = elements_ == 0 && !actual_.shape.empty() && actual_.shape[0] == 0 ? "0 rows"
                  : elements_ == 0                                                  ? "0 elements"
                                   : std::string(output_) + ": no element can be judged";
      return;
    }
    if (v_.mismatches == 0) return;
    v_.status = Status::fail;
    v_.reason = std::string(output_) + ": " + std::to_string(v_.mismatches) + " of " +
                std::to_string(v_.judged) +
                (truth_.value.empty() ? " elements wrong" : " elements beyond their bound");
    if (v_.unwritten)
      v_.reason += ", unwritten=" + std::to_string(unwritten_rows_) +
                   (unwritten_rows_ == 1 ? " row" : " rows");
    if (v_.nonfinite) v_.reason += ", " + std::to_string(v_.nonfinite) + " NaN or inf";
    if (all_zero_ && !truth_zero_) v_.reason += ", output norm 0";
  }

  std::string_view output_;
  const reference::Output& truth_;
  const Tensor& actual_;
  const Place& place_;
  Verdict v_;
  int64_t elements_ = 1, row_elements_ = 1, unwritten_rows_ = 0, last_unwritten_row_ = -1;
  bool all_zero_ = true, truth_zero_ = true;
  double square_error_ = 0, square_truth_ = 0;
};

}  // namespace

std::string number_text(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", v);
  return text;
}

Verdict compare(std::string_view op, std::string_view output, const reference::Output& truth,
                const Tensor& actual, const Place& place) {
  if (actual.dtype != truth.dtype || actual.shape != truth.shape)
    throw toolkit::Violation(
        op, output,
        std::string(toolkit::name_of(truth.dtype)) + " " + toolkit::to_text(truth.shape),
        std::string(toolkit::name_of(actual.dtype)) + " " + toolkit::to_text(actual.shape));
  size_t n = 1;
  for (const int64_t size : truth.shape) n *= size_t(size);
  const bool whole = truth.bytes.size() == n * size_t(toolkit::bytes_of(truth.dtype)) ||
                     truth.integer.size() == n ||
                     (truth.value.size() == n && truth.bound.size() == n);
  if (!whole || (!truth.judged.empty() && truth.judged.size() != n))
    throw std::logic_error(std::string(op) + ": the oracle's " + std::string(output) + " has not " +
                           std::to_string(n) + " elements (a fault of the oracle)");
  return Comparison(output, truth, actual, place).run();
}

}  // namespace harness

// SPDX-License-Identifier: Apache-2.0
// Thousands of damaged headers, the same ones on every run: each is refused or keeps its promises.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "harness/generate/random.h"
#include "header_check.h"

namespace harness {
namespace {

std::vector<std::string> seeds(const std::string& ending) {
  std::vector<std::string> out;
  for (const auto& f :
       std::filesystem::directory_iterator(TOOLKIT_SOURCE_DIR "/tests/data/dumps")) {
    if (f.path().extension() != ending) continue;
    std::ifstream in(f.path(), std::ios::binary);
    out.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::string damage(std::string s, const Random& r) {
  static const char* const words[] = {"-1",
                                      "0",
                                      "9223372036854775807",
                                      "18446744073709551615",
                                      "4294967296",
                                      "1e3",
                                      "[",
                                      "{",
                                      "]",
                                      "}",
                                      "\"",
                                      ",",
                                      "null",
                                      "\\u0000",
                                      "\xff",
                                      "view.x",
                                      "storage=a",
                                      " ",
                                      "'",
                                      "(",
                                      ")"};
  const int64_t times = 1 + r.below(0, 4);
  for (int64_t i = 0; i < times; ++i) {
    if (s.empty()) return s;
    const uint64_t n = uint64_t(i) * 8 + 1;
    const size_t at = size_t(r.below(n, int64_t(s.size())));
    switch (r.below(n + 1, 6)) {
      case 0:
        s[at] = char(s[at] ^ (1 << r.below(n + 2, 8)));
        break;
      case 1:
        s.resize(at);
        break;
      case 2:
        s.insert(at, words[r.below(n + 2, std::size(words))]);
        break;
      case 3:
        s.erase(at, size_t(1 + r.below(n + 2, 8)));
        break;
      case 4:
        s.insert(at,
                 s.substr(size_t(r.below(n + 2, int64_t(s.size()))), size_t(r.below(n + 3, 40))));
        break;
      case 5:
        s.replace(at, std::min<size_t>(1, s.size() - at), words[r.below(n + 2, std::size(words))]);
        break;
    }
  }
  return s;
}

// A safetensors header is only looked at where its length fits: half of the damaged files get
// theirs right again.
std::string mend_length(std::string s, size_t header) {
  if (s.size() < 8 + header) return s;
  for (int i = 0; i < 8; ++i) s[size_t(i)] = char(header >> (8 * i));
  return s;
}

template <class Parse>
void hammer(Parse parse, const std::string& ending, int rounds) {
  const auto files = seeds(ending);
  ASSERT_GE(files.size(), 8u);
  for (size_t f = 0; f < files.size(); ++f)
    for (int i = 0; i < rounds; ++i) {
      const Random r = Random(1, ending).stream(std::to_string(f), uint64_t(i));
      std::string s = damage(files[f], r);
      if (ending == ".safetensors" && i % 2) {
        const size_t close = s.rfind('}');
        if (close != std::string::npos && close >= 8) s = mend_length(s, close + 1 - 8);
      }
      const std::vector<char> exact(
          s.begin(), s.end());  // its own allocation: a sanitizer sees a read past the end
      EXPECT_EQ(broken_promise(parse, std::as_bytes(std::span(exact))), "")
          << "file " << f << " round " << i;
    }
}

TEST(Mutations, OfSafetensorsAreRefusedOrKeepTheirPromises) {
  hammer(parse_safetensors, ".safetensors", 600);
}
TEST(Mutations, OfNpyAreRefusedOrKeepTheirPromises) { hammer(parse_npy, ".npy", 600); }

}  // namespace
}  // namespace harness

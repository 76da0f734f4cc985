// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>

#include "files.h"
#include "text.h"

namespace harness {
namespace {

std::string npy(const std::string& header, const std::string& data, int version = 1) {
  return std::string("\x93NUMPY") + char(version) + '\0' +
         little_endian(header.size(), version == 1 ? 2 : 4) + header + data;
}

std::string floats(const std::vector<float>& values, bool big = false) {
  std::string s;
  for (const float f : values) {
    std::string e = little_endian(std::bit_cast<uint32_t>(f), 4);
    s += big ? std::string(e.rbegin(), e.rend()) : e;
  }
  return s;
}

const std::string kMatrix = floats({0, 1, 2, 3, 4, 5});

class Npy : public Files {
 protected:
  // The 2x3 matrix 0..5 has to come out, whatever the header looks like.
  void expect_matrix(const std::string& bytes) {
    const Dump d = Dump::open(write("t.npy", bytes));
    EXPECT_EQ(d.format(), "npy");
    const Tensor t = d.tensor("");
    ASSERT_EQ(t.shape, (Shape{2, 3}));
    for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(t.real(i), double(i));
  }
  std::string refused(const std::string& header, const std::string& data = kMatrix,
                      int version = 1) {
    return refusal(write("t.npy", npy(header, data, version)));
  }
};

TEST_F(Npy, ReadsEveryHeaderVariant) {
  const std::string plain = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  for (int version = 1; version <= 3; ++version) expect_matrix(npy(plain + "\n", kMatrix, version));
  expect_matrix(npy(plain, kMatrix));  // no newline
  expect_matrix(npy(plain + std::string(4096, ' ') + "\n", kMatrix));
  expect_matrix(npy(plain + std::string(70000, ' ') + "\n", kMatrix, 2));
  expect_matrix(npy("{'shape': (2L, 3L), 'descr': '<f4', 'fortran_order': False}\n", kMatrix));
  expect_matrix(
      npy("{\"fortran_order\": False, \"shape\": (2, 3,), \"descr\": \"<f4\"}\n", kMatrix));
  expect_matrix(npy("{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }\n",
                    floats({0, 1, 2, 3, 4, 5}, true)));
  expect_matrix(npy("{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }\n",
                    std::string("\0\1\2\3\4\5", 6)));
  expect_matrix(npy("{'descr': '<i8', 'fortran_order': False, 'shape': (2, 3), }\n",
                    little_endian(0, 8) + little_endian(1, 8) + little_endian(2, 8) +
                        little_endian(3, 8) + little_endian(4, 8) + little_endian(5, 8)));
  expect_matrix(npy("{'descr': '<f2', 'fortran_order': False, 'shape': (2, 3), }\n",
                    little_endian(0, 2) + little_endian(0x3c00, 2) + little_endian(0x4000, 2) +
                        little_endian(0x4200, 2) + little_endian(0x4400, 2) +
                        little_endian(0x4500, 2)));
}

TEST_F(Npy, FortranOrderBecomesStrides) {
  const std::string f =
      write("t.npy", npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }\n",
                         floats({0, 3, 1, 4, 2, 5})));
  expect_matrix(npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }\n",
                    floats({0, 3, 1, 4, 2, 5})));
  EXPECT_EQ(describe(f)[0].strides, (Shape{1, 2}));
}

TEST_F(Npy, ScalarsAndEmptyArraysAreLegal) {
  EXPECT_EQ(Dump::open(write("t.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': ()}",
                                          floats({3.25}))))
                .tensor("")
                .real(0),
            3.25);
  EXPECT_EQ(refused("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 128)}", ""), "accepted");
}

TEST_F(Npy, RefusesByName) {
  const auto shape = [&](const std::string& s) {
    return refused("{'descr': '<f4', 'fortran_order': False, 'shape': " + s + "}");
  };
  EXPECT_EQ(shape("(6,)"), "accepted");
  EXPECT_TRUE(has(shape("(-6,)"), "a negative size"));
  EXPECT_TRUE(has(shape("(7,)"), "expected 28 bytes of data"));
  EXPECT_TRUE(has(shape("(5,)"), "got 24"));
  EXPECT_TRUE(has(shape("(4294967296, 4294967296)"), "a product within 63 bits"));
  EXPECT_TRUE(has(shape("(99999999999999999999,)"), "a longer number"));
  EXPECT_TRUE(has(shape("(6.0,)"), "expected ')'"));
  EXPECT_TRUE(has(shape("6"), "expected '('"));
  EXPECT_TRUE(has(shape("(" +
                        std::string(66, '1').replace(1, 65,
                                                     [] {
                                                       std::string s;
                                                       for (int i = 0; i < 40; ++i) s += ",1";
                                                       return s;
                                                     }()) +
                        ")"),
                  "at most 32 dimensions"));
  EXPECT_TRUE(has(refused("{'descr': '<f4', 'fortran_order': False}"), "a key 'shape', got none"));
  EXPECT_TRUE(has(refused("{'descr': '<f4', 'descr': '<f4'}"), "duplicate key 'descr'"));
  EXPECT_TRUE(has(refused("{'descr': '<f4', 'x': 1}"), "'x'"));
  EXPECT_TRUE(
      has(refused("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"), "Python objects"));
  EXPECT_TRUE(has(refused("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,)}"),
                  "a structured one"));
  EXPECT_TRUE(has(refused("{'descr': '<c8', 'fortran_order': False, 'shape': (3,)}"), "got '<c8'"));
  EXPECT_TRUE(has(refused("{'descr': '<f4"), "no closing quote"));
  EXPECT_TRUE(has(refused("{'descr': '<f4', 'fortran_order': 1"), "True or False"));
  EXPECT_TRUE(has(refused("{} os.system('x')"), "more text"));
  EXPECT_TRUE(has(refused(""), "the end of the header"));
  EXPECT_TRUE(has(refused("{'descr': '<f4', 'fortran_order': False, 'shape': (6,)}", kMatrix, 9),
                  "version"));
  EXPECT_TRUE(
      has(refused("{'descr': '<f4', 'fortran_order': False, 'shape': (6)}"), "expected ','"));
  EXPECT_TRUE(has(refusal(write("t.npy", std::string("\x93NUMPY\1\5\2\0{}", 12))),
                  "expected 1.0, 2.0 or 3.0, got 1.5"));
}

TEST_F(Npy, RefusesLengthsBeyondTheFile) {
  EXPECT_TRUE(
      has(refusal(write("t.npy", std::string("\x93NUMPY\1\0\xff\xff{}", 12))), "header length"));
  EXPECT_TRUE(has(refusal(write("t.npy", std::string("\x93NUMPY\2\0\xff\xff\xff\xff{}", 14))),
                  "4294967295"));
  EXPECT_TRUE(has(refusal(write("t.npy", std::string("\x93NUMPY\2\0\1", 9))), "format"));
  EXPECT_TRUE(
      has(refusal(write("t.npy", std::string("\x93NUMPY\2\0\1\0", 10))), "the end of the file"));
  EXPECT_TRUE(has(refusal(write("t.npy", "")), "format"));
}

TEST_F(Npy, OtherFormatsGetANotYetWithTheNextStep) {
  for (const char* name : {"t.npz", "t.pt", "t.pth", "t.bin"}) {
    try {
      Dump::open(write(name, "PK\x03\x04" + std::string(60, '\0')));
      ADD_FAILURE() << name;
    } catch (const BadFile& e) {
      EXPECT_TRUE(has(e.what(), "not yet: convert to safetensors")) << name;
    }
  }
}

}  // namespace
}  // namespace harness

// SPDX-License-Identifier: Apache-2.0
// The probes' kernels, and one op that runs them: built for simt and for cuda, so that a test can
// compare.
#include "device/device.h"
#include "device/launch.h"
#include "device/op.h"
#include "probe_contract.h"

namespace conformance {
namespace {

using device::bit_cast;

DEVICE_KERNEL(kThreads) indices(const uint32_t*, uint32_t* out) {
  const int block =
      (device::block_z() * device::blocks_y() + device::block_y()) * device::blocks_x() +
      device::block_x();
  const int words[11] = {device::thread(),   device::threads(),  device::block_x(),
                         device::block_y(),  device::block_z(),  device::blocks_x(),
                         device::blocks_y(), device::blocks_z(), device::lane(),
                         device::wave(),     device::waves()};
  for (int i = 0; i < 11; ++i)
    out[(block * device::threads() + device::thread()) * 11 + i] = uint32_t(words[i]);
}

DEVICE_KERNEL(kThreads) shuffles(const uint32_t* in, uint32_t* out) {
  const int t = device::thread();
  const uint32_t v = in[t];
  const uint64_t wide = uint64_t(in[t]) << 32 | in[kThreads + t];
  uint32_t* o = out + t * 14;
  *o++ = device::shuffle(v, (device::lane() * 7 + 3) % device::kWave);
  *o++ = device::shuffle(v, 5);
  for (int mask = 1; mask < device::kWave; mask *= 2) *o++ = device::shuffle_xor(v, mask);
  *o++ = device::shuffle_up(v, 1);
  *o++ = device::shuffle_up(v, 13);
  *o++ = device::shuffle_down(v, 1);
  *o++ = device::shuffle_down(v, 13);
  *o++ = bit_cast<uint32_t>(device::shuffle_xor(bit_cast<float>(v), 3));
  const uint64_t w = device::shuffle_down(wide, 9);
  *o++ = uint32_t(w);
  *o = uint32_t(w >> 32);
}

DEVICE_KERNEL(kThreads) votes(const uint32_t* in, uint32_t* out) {
  const bool b = in[device::thread()] & 1;
  const device::LaneMask m = device::ballot(b);
  uint32_t* o = out + device::thread() * 7;
  *o++ = uint32_t(m);
  *o++ = uint32_t(device::popcount(m));
  *o++ = uint32_t(device::first_lane(m));
  *o++ = uint32_t(device::popcount(m & device::lanes_below()));
  *o++ = device::any(b && device::wave() == 1);
  *o++ = device::all(b || device::wave() == 1);
  *o = uint32_t(device::first_lane(device::ballot(false)));
}

DEVICE_KERNEL(kThreads) reductions(const uint32_t* in, uint32_t* out) {
  DEVICE_SHARED(int, ints, 32);
  DEVICE_SHARED(float, floats, 32);
  const int i = int(in[device::thread()] % 2001) - 1000;
  const float f = float(i);
  uint32_t* o = out + device::thread() * 10;
  *o++ = uint32_t(device::wave_sum(i));
  *o++ = uint32_t(device::wave_max(i));
  *o++ = uint32_t(device::wave_min(i));
  *o++ = bit_cast<uint32_t>(device::wave_sum(f));
  *o++ = bit_cast<uint32_t>(
      device::wave_max(i % 3 ? f : device::nan()));  // NaN in some lanes is passed over
  *o++ = bit_cast<uint32_t>(device::wave_min(f));
  *o++ = uint32_t(device::block_sum(i, ints));
  *o++ = uint32_t(device::block_max(i, ints));
  *o++ = bit_cast<uint32_t>(device::block_sum(f, floats));
  *o = bit_cast<uint32_t>(device::block_max(f, floats));
}

// Eight words: add and max of int32, min, or, exchange and cas of uint32, float add; then two of
// uint64.
DEVICE_FUNCTION void atomics_on(uint32_t* words, uint64_t* wide, uint32_t v) {
  const int i = int(v % 2001) - 1000;
  device::atomic_add(reinterpret_cast<int32_t*>(words + 0), i);
  device::atomic_max(reinterpret_cast<int32_t*>(words + 1), i);
  device::atomic_min(words + 2, v);
  device::atomic_or(words + 3, 1u << (v % 32));
  // Whoever is exchanged out is added to word 5, so that the two words together hold every thread's
  // value once.
  device::atomic_add(words + 5, device::atomic_exchange(words + 4, v));
  for (uint32_t seen = 0;;) {
    const uint32_t old = device::atomic_cas(words + 6, seen, seen + v);
    if (old == seen) break;
    seen = old;
  }
  device::atomic_add(reinterpret_cast<float*>(words + 7), float(i));
  device::atomic_add(wide + 0, uint64_t(v) << 20);
  device::atomic_max(wide + 1, uint64_t(v) << 20);
}
DEVICE_FUNCTION void start_atomics(uint32_t* words, uint64_t* wide) {
  if (device::thread() < 8) words[device::thread()] = device::thread() == 2 ? 0x7fffffffu : 0;
  if (device::thread() < 2) wide[device::thread()] = 0;
}
DEVICE_FUNCTION void finish_atomics(uint32_t* words) {
  if (device::thread() == 0) words[5] += words[4];
  if (device::thread() == 0) words[4] = 0;
}
DEVICE_KERNEL(kThreads) shared_atomics(const uint32_t* in, uint32_t* out) {
  DEVICE_SHARED(uint32_t, words, 8);
  DEVICE_SHARED(uint64_t, wide, 2);
  start_atomics(device::data(words), device::data(wide));
  device::sync_block();
  atomics_on(device::data(words), device::data(wide), in[device::thread()]);
  device::sync_block();
  finish_atomics(device::data(words));
  device::sync_block();
  if (device::thread() < 8) out[device::thread()] = words[device::thread()];
  if (device::thread() < 2)
    reinterpret_cast<uint64_t*>(out + 8)[device::thread()] = wide[device::thread()];
}
DEVICE_KERNEL(kThreads) global_atomics(const uint32_t* in, uint32_t* out) {
  uint64_t* wide = reinterpret_cast<uint64_t*>(out + 8);
  start_atomics(out, wide);
  device::fence();
  device::sync_block();
  atomics_on(out, wide, in[device::thread()]);
  device::fence();
  device::sync_block();
  finish_atomics(out);
}

// Three groups of copies: each thread reads what another thread copied, after the wait that covers
// its group.
DEVICE_KERNEL(kThreads) async_copies(const uint32_t* in, uint32_t* out) {
  constexpr int kWords = 4 * kThreads;
  DEVICE_SHARED(uint32_t, stages, 3 * kWords);
  const int t = device::thread(), other = (t * 5 + 1) % kThreads;
  for (int s = 0; s < 3; ++s) {
    const bool valid = (t + s) % 4 != 0;
    device::copy_async16(device::data(stages) + s * kWords + 4 * t,
                         valid ? in + 4 * ((t + s) % kThreads) : nullptr, valid);
    device::copy_async_commit();
  }
  for (int s = 0; s < 3; ++s) {
    if (s == 0) device::copy_async_wait<2>();
    if (s == 1) device::copy_async_wait<1>();
    if (s == 2) device::copy_async_wait<0>();
    device::sync_block();
    for (int w = 0; w < 4; ++w) out[s * kWords + 4 * t + w] = stages[s * kWords + 4 * other + w];
  }
}

DEVICE_KERNEL(kThreads) dynamic_shared(const uint32_t* in, uint32_t* out) {
  DEVICE_DYNAMIC_SHARED(uint32_t, words);
  for (int i = device::thread(); i < kDynamicWords; i += kThreads) words[i] = in[i];
  device::sync_block();
  for (int i = device::thread(); i < kDynamicWords; i += kThreads)
    out[i] = words[kDynamicWords - 1 - i];
}

DEVICE_KERNEL(kThreads) exact_math(const uint32_t* in, uint32_t* out) {
  const int i = device::block_x() * kThreads + device::thread();
  const float a = bit_cast<float>(in[i]), b = bit_cast<float>(in[kValues + i]),
              c = bit_cast<float>(in[2 * kValues + i]);
  const float results[kExactFunctions] = {
      device::divide(a, b), device::sqrt(a),   device::fma(a, b, c),
      device::min(a, b),    device::max(a, b), device::abs(a),
      device::floor(a),     a * b + c,         device::isnan(a) ? 1.0f : 0.0f};
  for (int f = 0; f < kExactFunctions; ++f) out[f * kValues + i] = bit_cast<uint32_t>(results[f]);
}
DEVICE_KERNEL(kThreads) rounded_math(const uint32_t* in, uint32_t* out) {
  const int i = device::block_x() * kThreads + device::thread();
  const float a = bit_cast<float>(in[i]);
  const float results[kRoundedFunctions] = {device::exp2(a), device::exp(a), device::log2(a),
                                            device::log(a), device::rsqrt(a)};
  for (int f = 0; f < kRoundedFunctions; ++f) out[f * kValues + i] = bit_cast<uint32_t>(results[f]);
}

DEVICE_KERNEL(kThreads) to_float(const uint32_t* in, uint32_t* out) {
  const int i = device::block_x() * kThreads + device::thread();
  const uint32_t bits = in[i];
  const uint8_t byte = uint8_t(bits);
  const float results[kFormats] = {device::to_float(device::bf16{uint16_t(bits)}),
                                   device::to_float(device::f16{uint16_t(bits)}),
                                   device::decode_e4m3fn(byte),
                                   device::decode_e4m3fnuz(byte),
                                   device::decode_e4b15(byte),
                                   device::decode_e5m2(byte)};
  for (int f = 0; f < kFormats; ++f) out[f * kValues + i] = bit_cast<uint32_t>(results[f]);
}
DEVICE_KERNEL(kThreads) from_float(const uint32_t* in, uint32_t* out) {
  const int i = device::block_x() * kThreads + device::thread();
  const float x = bit_cast<float>(in[i]);
  const uint32_t results[kFormats] = {device::from_float<device::bf16>(x).bits,
                                      device::from_float<device::f16>(x).bits,
                                      device::encode_e4m3fn(x),
                                      device::encode_e4m3fnuz(x),
                                      device::encode_e4b15(x),
                                      device::encode_e5m2(x)};
  for (int f = 0; f < kFormats; ++f) out[f * kValues + i] = results[f];
}

// A, B and C row-major in the input, elements of A and B as bits; D and then every lane's
// coordinates in the output.
template <class T>
DEVICE_KERNEL(64)
mma(const uint32_t* in, uint32_t* out) {
  using M = device::Mma<T>;
  const uint32_t *in_b = in + M::M * M::K, *in_c = in_b + M::K * M::N;
  typename M::A a;
  typename M::B b;
  typename M::C c;
  uint32_t* o = out + M::M * M::N + device::lane() * 2 * (a.kSize + b.kSize + c.kSize);
  DEVICE_UNROLL
  for (int e = 0; e < a.kSize; ++e) {
    a.set(e, uint16_t(in[M::a_row(e) * M::K + M::a_k(e)]));
    *o++ = uint32_t(M::a_row(e));
    *o++ = uint32_t(M::a_k(e));
  }
  DEVICE_UNROLL
  for (int e = 0; e < b.kSize; ++e) {
    b.set(e, uint16_t(in_b[M::b_k(e) * M::N + M::b_col(e)]));
    *o++ = uint32_t(M::b_k(e));
    *o++ = uint32_t(M::b_col(e));
  }
  DEVICE_UNROLL
  for (int e = 0; e < c.kSize; ++e) {
    c.set(e, bit_cast<float>(in_c[M::c_row(e) * M::N + M::c_col(e)]));
    *o++ = uint32_t(M::c_row(e));
    *o++ = uint32_t(M::c_col(e));
  }
  M::multiply(c, a, b);
  DEVICE_UNROLL
  for (int e = 0; e < c.kSize; ++e)
    out[M::c_row(e) * M::N + M::c_col(e)] = bit_cast<uint32_t>(c.get(e));
}

struct ProbeOp {
  static constexpr const toolkit::Contract& contract = kDialect;
  static constexpr const char* implementation = "portable";
  static uint64_t workspace(const toolkit::Args&) { return 0; }
  static void run(const device::OpCall& call) {
    const uint32_t* in = call.tensor("in").data<const uint32_t>();
    uint32_t* out = call.tensor("out").data<uint32_t>();
    const auto launch = [&](auto kernel, device::Grid grid = {}, int threads = kThreads,
                            size_t bytes = 0) {
      device::launch(kernel, grid, threads, bytes, call.stream, in, out);
    };
    const device::Grid all{kValues / kThreads, 1, 1};
    switch (call.args.integer("probe")) {
      case kIndices:
        return launch(indices, {kGrid[0], kGrid[1], kGrid[2]});
      case kShuffles:
        return launch(shuffles);
      case kVotes:
        return launch(votes);
      case kReductions:
        return launch(reductions);
      case kSharedAtomics:
        return launch(shared_atomics);
      case kGlobalAtomics:
        return launch(global_atomics);
      case kAsyncCopies:
        return launch(async_copies);
      case kDynamicShared:
        return launch(dynamic_shared, {}, kThreads, 4 * kDynamicWords);
      case kExactMath:
        return launch(exact_math, all);
      case kRoundedMath:
        return launch(rounded_math, all);
      case kToFloat:
        return launch(to_float, all);
      case kFromFloat:
        return launch(from_float, all);
      case kMmaBf16:
        return launch(mma<device::bf16>, {}, device::kWave);
      case kMmaF16:
        return launch(mma<device::f16>, {}, device::kWave);
    }
  }
};

}  // namespace
}  // namespace conformance

using conformance::ProbeOp;
DEVICE_OP(ProbeOp)

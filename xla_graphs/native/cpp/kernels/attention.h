// Scaled dot-product attention and its gradients, one head after the other, without a T x S array in memory. No header of
// XLA's is needed here.

#ifndef XTRAIN_CPP_KERNELS_ATTENTION_H_
#define XTRAIN_CPP_KERNELS_ATTENTION_H_

#include <atomic>
#include <cstdint>
#include <vector>

namespace xtrain::kernels {

// An array [B, heads, T, D] by the distances of neighbours along B, heads and T, in elements; D is contiguous.
struct Heads {
  void* data;
  int64_t strides[3];
};

// Dropout of the probabilities: an element of [B, H, T, S] is kept if its word of Threefry's stream is at least the threshold, as
// `nn/dropout.rs` has it; of the whole batch, of which this is shard `key[2]`.
struct AttentionDropout {
  bool is_on;
  uint32_t threshold, stream;
  uint32_t key[3];
  float scale;  // 1 / (1 - rate)
};

// out = dropout(softmax(scale q k^T, capped, masked)) v. All arrays are f32, or all are bf16; scores and probabilities are
// f32, and rounded to bf16 where a matmul of bf16 reads them.
struct Attention {
  bool is_bf16;
  int64_t batch, heads, kv_heads, queries, keys, width;  // B, H, K (divides H), T, S, D
  Heads q, k, v;
  float scale;
  float soft_cap;  // 0: none
  bool is_causal;  // query t sees keys up to t
  int64_t window;  // 0: none; else keys less than this before the query, and after it if it is not causal
  const uint8_t* key_mask;  // [B, S], not 0 where a key counts; or null
  const int32_t* first;  // [B, T], of each query the first key that it sees, at most its own; or null. Only if causal and T = S, without key_mask
  AttentionDropout dropout;

  Heads out;              // written forward, read backward
  float* statistics;      // [2, B, H, T], as `out`: the highest score of each query as an exponent of 2, and 1 over its sum
  Heads dy, dq, dk, dv;   // backward
};

// How the work is divided: for each batch entry and key/value head, `chunks` parts, whatever the number of threads. A part
// takes every `chunks`-th block of queries of the query heads that share the head.
struct AttentionPlan {
  int64_t block;   // queries at a time, a multiple of 32
  int64_t blocks;  // of one query head
  int64_t chunks, parts;
  int64_t sums;    // f32 that a part of several leaves of the gradients of keys and values
};

// What the parts of a backward call share, if there are several for a head: the sums of each, and how many are done.
struct AttentionSums {
  std::vector<float> sums;
  std::vector<std::atomic<int64_t>> done;
};

// `forward` and `backward` claim parts from `next` until none is left.
struct AttentionImplementation {
  AttentionPlan (*plan)(const Attention&);
  void (*forward)(const Attention&, const AttentionPlan&, std::atomic<int64_t>& next);
  void (*backward)(const Attention&, const AttentionPlan&, AttentionSums&, std::atomic<int64_t>& next);
};

}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_ATTENTION_H_

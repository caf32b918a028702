#pragma once

#include <cstdint>

#include "ggml.h"

namespace selfserve {

constexpr int BLOCK = 32;  // values that share a scale, in weights as in activations

// A row of activations, rounded to 8 bits, as value = quant * scale.
struct Row {
    const int8_t * quants;  // [depth]
    const float * scales;   // [blocks]
    const float * sums;     // [blocks][2]: of the rounded values of the halves of each block
};

// Bytes of a row of `depth` values.
inline int64_t row_size(int64_t depth) {
    return depth + depth / BLOCK * 3 * sizeof(float);
}

inline Row row_at(const char * rows, int64_t index, int64_t depth) {
    const char * row = rows + index * row_size(depth);
    const float * scales = (const float *) (row + depth);
    return {(const int8_t *) row, scales, scales + depth / BLOCK};
}

// Rounds every `step`th row of `input`, which is F32, from `first` on.
void round_rows(const ggml_tensor * input, char * rows, int64_t first, int64_t step);

}  // namespace selfserve

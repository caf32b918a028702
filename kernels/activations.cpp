#include "activations.h"

#include <immintrin.h>

namespace selfserve {
namespace {

int32_t sum_of(__m256i v) {
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    return _mm_cvtsi128_si32(half);
}

void round_row(const float * values, int64_t depth, char * target) {
    int8_t * quants = (int8_t *) target;
    float * scales = (float *) (target + depth);
    float * sums = scales + depth / BLOCK;
    const __m256 sign = _mm256_set1_ps(-0.0f);
    for (int64_t b = 0; b < depth / BLOCK; b++, values += BLOCK, quants += BLOCK) {
        __m256 value[4];
        __m256 largest = _mm256_setzero_ps();
        for (int i = 0; i < 4; i++) {
            value[i] = _mm256_loadu_ps(values + 8 * i);
            largest = _mm256_max_ps(largest, _mm256_andnot_ps(sign, value[i]));
        }
        __m128 top = _mm_max_ps(_mm256_castps256_ps128(largest), _mm256_extractf128_ps(largest, 1));
        top = _mm_max_ps(top, _mm_movehl_ps(top, top));
        const float most = _mm_cvtss_f32(_mm_max_ss(top, _mm_movehdup_ps(top)));
        const __m256 inverse = _mm256_set1_ps(most > 0 ? 127 / most : 0);
        __m256i number[4];
        for (int i = 0; i < 4; i++) {
            number[i] = _mm256_cvtps_epi32(_mm256_mul_ps(value[i], inverse));
        }
        // Packing works within halves of a register; the permutation restores the order.
        const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(number[0], number[1]),
                                                 _mm256_packs_epi32(number[2], number[3]));
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        _mm256_storeu_si256((__m256i *) quants, _mm256_permutevar8x32_epi32(bytes, order));
        const float scale = most / 127;
        scales[b] = scale;
        sums[2 * b] = scale * (float) sum_of(_mm256_add_epi32(number[0], number[1]));
        sums[2 * b + 1] = scale * (float) sum_of(_mm256_add_epi32(number[2], number[3]));
    }
}

}  // namespace

void round_rows(const ggml_tensor * input, char * rows, int64_t first, int64_t step) {
    const int64_t depth = input->ne[0];
    const int64_t num_rows = ggml_nrows(input);
    for (int64_t i = first; i < num_rows; i += step) {
        const int64_t i1 = i % input->ne[1];
        const int64_t i2 = i / input->ne[1] % input->ne[2];
        const int64_t i3 = i / input->ne[1] / input->ne[2];
        const char * row = (const char *) input->data + i1 * input->nb[1] + i2 * input->nb[2] +
                           i3 * input->nb[3];
        round_row((const float *) row, depth, rows + i * row_size(depth));
    }
}

}  // namespace selfserve

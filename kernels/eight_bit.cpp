// Products of weights in Q8_0, read where they lie: no copy is made, and a file stays mapped.
//
// The matrix of the output has this type in files whose vocabulary does not divide into larger
// blocks. It is the largest of a small model, and is read for every token.
#include <immintrin.h>

#include "product.h"
#include "sums.h"

namespace selfserve {
namespace {

struct Block {
    uint16_t scale;  // F16
    int8_t quants[BLOCK];
};

template <int ROWS>
void multiply_rows(const Block * block, int64_t num_blocks, const Row * rows, float * out,
                   int64_t stride) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256 total[ROWS];
    for (int r = 0; r < ROWS; r++) {
        total[r] = _mm256_setzero_ps();
    }
    for (int64_t b = 0; b < num_blocks; b++, block++) {
        _mm_prefetch((const char *) block + 4096, _MM_HINT_T0);
        const __m256i weights = _mm256_loadu_si256((const __m256i *) block->quants);
        const __m256i sizes = _mm256_sign_epi8(weights, weights);
        const float scale = _cvtsh_ss(block->scale);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
            const __m256i quants =
                _mm256_loadu_si256((const __m256i *) (rows[r].quants + BLOCK * b));
            const __m256i signed_quants = _mm256_sign_epi8(quants, weights);
            const __m256i pairs = _mm256_maddubs_epi16(sizes, signed_quants);
            const __m256 product = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, ones));
            total[r] = _mm256_fmadd_ps(product, _mm256_set1_ps(scale * rows[r].scales[b]), total[r]);
        }
    }
    for (int r = 0; r < ROWS; r++) {
        out[r * stride] = sum_of(total[r]);
    }
}

class EightBit : public Product {
  protected:
    void multiply(const ggml_tensor * weights, int64_t begin, int64_t end, const Row * rows,
                  int count, float * out, int64_t stride) const override {
        const int64_t num_blocks = weights->ne[0] / BLOCK;
        const int64_t last = end * LANES < weights->ne[1] ? end * LANES : weights->ne[1];
        for (int64_t i = begin * LANES; i < last; i++) {
            const Block * block = (const Block *) ((const char *) weights->data + i * weights->nb[1]);
            switch (count) {
                case 1: multiply_rows<1>(block, num_blocks, rows, out + i, stride); break;
                case 2: multiply_rows<2>(block, num_blocks, rows, out + i, stride); break;
                case 3: multiply_rows<3>(block, num_blocks, rows, out + i, stride); break;
                default: multiply_rows<4>(block, num_blocks, rows, out + i, stride);
            }
        }
    }
};

}  // namespace

Product * product_in_place_for(const ggml_tensor * op) {
    static EightBit eight_bit;
    if (op->op != GGML_OP_MUL_MAT) {
        return nullptr;
    }
    const ggml_tensor * weights = op->src[0];
    const ggml_tensor * input = op->src[1];
    const bool fits = weights->type == GGML_TYPE_Q8_0 && input->type == GGML_TYPE_F32 &&
                      ggml_n_dims(weights) == 2 && weights->nb[0] == sizeof(Block) &&
                      input->nb[0] == sizeof(float) && ggml_is_contiguous(op);
    return fits ? &eight_bit : nullptr;
}

}  // namespace selfserve

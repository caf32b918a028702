// Products of weights in Q6_K, arranged like those of four bits.
//
// Weights count from 0 to 63, so only two products of a lane fit into 16 bits before the step to
// 32, which takes the factor of 16 weights along. That they mean -32 to 31 is put right with the
// sums of the activations.
#include <immintrin.h>

#include "panels.h"
#include "product.h"

namespace selfserve {
namespace {

struct SixBit {
    static constexpr int num_blocks = 8;
    struct Weights {
        uint8_t low[128];
        uint8_t high[64];
        int8_t factors[2 * num_blocks];
        uint16_t scale;  // F16
    };
    struct Panel {
        uint16_t scales[LANES];
        int8_t factors[num_blocks][2][LANES];
        uint8_t low[num_blocks][BLOCK / 2 * LANES];   // the byte with value i has value 16 + i, too
        uint8_t high[num_blocks][BLOCK / 4 * LANES];  // two registers, one for each half of a block
    };

    static void take(Panel & panel, int lane, const Weights & weights) {
        panel.scales[lane] = weights.scale;
        for (int b = 0; b < num_blocks; b++) {
            // Halves of 128 weights; in each, 64 bytes hold the low bits of two times 64 weights,
            // and 32 bytes the high bits of four times 32.
            const int quarter = b % 4;
            const uint8_t * low = weights.low + b / 4 * 64 + quarter % 2 * 32;
            const uint8_t * high = weights.high + b / 4 * 32;
            __m128i low_bits[2];
            for (int half = 0; half < 2; half++) {
                panel.factors[b][half][lane] = weights.factors[2 * b + half];
                low_bits[half] = bits(load16(low + 16 * half), quarter / 2 * 4, 15);
                alignas(16) uint32_t parts[4];
                _mm_store_si128((__m128i *) parts, bits(load16(high + 16 * half), 2 * quarter, 3));
                const uint32_t joined = parts[0] | parts[1] << 2 | parts[2] << 4 | parts[3] << 6;
                memcpy(panel.high[b] + 32 * half + 4 * lane, &joined, sizeof(joined));
            }
            spread(panel.low[b], lane, join(low_bits[0], low_bits[1]));
        }
    }

    // The factors of 16 weights, each twice as 16-bit numbers.
    static __m256i pairs(const int8_t * factors) {
        const __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) factors));
        const __m256i low = _mm256_and_si256(wide, _mm256_set1_epi32(0xffff));
        return _mm256_or_si256(low, _mm256_slli_epi32(wide, 16));
    }

    static __m256 signed_numbers(const int8_t * factors) {
        return _mm256_cvtepi32_ps(
            _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) factors)));
    }

    template <int ROWS>
    static void multiply(const Panel & panel, int block, int64_t index, const Row * rows,
                         __m256 * total) {
        const __m256i four_bits = _mm256_set1_epi8(15);
        const __m256i two_bits = _mm256_set1_epi8(0x30);
        __m256i sum[ROWS];
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const __m256i high =
                _mm256_loadu_si256((const __m256i *) (panel.high[block] + 32 * half));
            const __m256i factors = pairs(panel.factors[block][half]);
#pragma GCC unroll 2
            for (int two = 0; two < 2; two++) {
                __m256i quants[2];
                for (int i = 0; i < 2; i++) {
                    const int part = 2 * two + i;
                    __m256i low =
                        _mm256_loadu_si256((const __m256i *) (panel.low[block] + 32 * part));
                    low = half ? _mm256_srli_epi16(low, 4) : low;
                    const __m256i moved = part < 2 ? _mm256_slli_epi16(high, 4 - 2 * part)
                                                   : _mm256_srli_epi16(high, 2 * part - 4);
                    quants[i] = _mm256_or_si256(_mm256_and_si256(low, four_bits),
                                                _mm256_and_si256(moved, two_bits));
                }
#pragma GCC unroll 4
                for (int r = 0; r < ROWS; r++) {
                    const int8_t * values =
                        rows[r].quants + BLOCK * index + BLOCK / 2 * half + 8 * two;
                    const __m256i both =
                        _mm256_add_epi16(_mm256_maddubs_epi16(quants[0], repeat(values)),
                                         _mm256_maddubs_epi16(quants[1], repeat(values + 4)));
                    const __m256i product = _mm256_madd_epi16(both, factors);
                    sum[r] = half + two ? _mm256_add_epi32(sum[r], product) : product;
                }
            }
        }
        const __m256 scale = widen(panel.scales);
        const __m256 offset = _mm256_mul_ps(scale, _mm256_set1_ps(-32));
        const __m256 first = _mm256_mul_ps(offset, signed_numbers(panel.factors[block][0]));
        const __m256 second = _mm256_mul_ps(offset, signed_numbers(panel.factors[block][1]));
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
            const __m256 both = _mm256_mul_ps(scale, _mm256_broadcast_ss(rows[r].scales + index));
            total[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r]), both, total[r]);
            const float * sums = rows[r].sums + 2 * index;
            total[r] = _mm256_fmadd_ps(first, _mm256_broadcast_ss(sums), total[r]);
            total[r] = _mm256_fmadd_ps(second, _mm256_broadcast_ss(sums + 1), total[r]);
        }
    }
};

}  // namespace

const ArrangedProduct * six_bit_product_for(ggml_type type) {
    static const PanelProduct<SixBit> q6_k;
    return type == GGML_TYPE_Q6_K ? &q6_k : nullptr;
}

}  // namespace selfserve

// Products of weights in Q4_0, Q4_1 and Q4_K.
//
// Every weight stays exactly as the file has it; only the order in memory changes: eight rows of
// the matrix lie interleaved, four values of each in turn, so that one register holds the same
// columns of all eight.
//
// Why it is faster than ggml's own: a product of 4-bit and 8-bit numbers is at most 15 * 127, so
// the 16 products of a block that meet in one 16-bit lane fit there without overflow, and the step
// to 32 bits is needed once a block instead of once for two products. Weights count from 0 to 15;
// where they begin (at -8 times the scale, or at an offset of the block) is put right with the sum
// of the activations of the block, which is known beforehand.
#include <immintrin.h>

#include "panels.h"
#include "product.h"

namespace selfserve {
namespace {

constexpr int QUANT_BYTES = BLOCK / 2;

// In all panels the byte of a block with value i has value 16 + i, too.
struct Q4_0 {
    static constexpr int num_blocks = 1;  // with scales of their own
    struct Weights {
        uint16_t scale;  // F16, as all scales and offsets here
        uint8_t quants[QUANT_BYTES];
    };
    struct Panel {
        uint16_t scales[LANES];
        uint8_t quants[num_blocks][QUANT_BYTES * LANES];
    };
    static void take(Panel & panel, int lane, const Weights & weights) {
        panel.scales[lane] = weights.scale;
        spread(panel.quants[0], lane, load16(weights.quants));
    }
    static void load(const Panel & panel, int, __m256 & scale, __m256 & offset) {
        scale = widen(panel.scales);
        offset = _mm256_mul_ps(scale, _mm256_set1_ps(-8));
    }
};

struct Q4_1 {
    static constexpr int num_blocks = 1;
    struct Weights {
        uint16_t scale;
        uint16_t offset;
        uint8_t quants[QUANT_BYTES];
    };
    struct Panel {
        uint16_t scales[LANES];
        uint16_t offsets[LANES];
        uint8_t quants[num_blocks][QUANT_BYTES * LANES];
    };
    static void take(Panel & panel, int lane, const Weights & weights) {
        panel.scales[lane] = weights.scale;
        panel.offsets[lane] = weights.offset;
        spread(panel.quants[0], lane, load16(weights.quants));
    }
    static void load(const Panel & panel, int, __m256 & scale, __m256 & offset) {
        scale = widen(panel.scales);
        offset = widen(panel.offsets);
    }
};

// Blocks of eight have a scale in common, and each a factor of 6 bits to it and to the offset.
struct Q4_K {
    static constexpr int num_blocks = 8;
    struct Weights {
        uint16_t scale;
        uint16_t offset;
        uint8_t factors[12];
        uint8_t quants[num_blocks * QUANT_BYTES];
    };
    struct Panel {
        uint16_t scales[LANES];
        uint16_t offsets[LANES];
        uint8_t scale_factors[num_blocks][LANES];
        uint8_t offset_factors[num_blocks][LANES];
        uint8_t quants[num_blocks][QUANT_BYTES * LANES];
    };
    static void take(Panel & panel, int lane, const Weights & weights) {
        panel.scales[lane] = weights.scale;
        panel.offsets[lane] = weights.offset;
        const uint8_t * f = weights.factors;
        for (int b = 0; b < num_blocks; b++) {
            // The upper two bits of the last four stand in the first eight bytes.
            const bool is_early = b < 4;
            const int scale = is_early ? f[b] & 63 : (f[b + 4] & 15) | (f[b - 4] >> 6) << 4;
            const int offset = is_early ? f[b + 4] & 63 : (f[b + 4] >> 4) | (f[b] >> 6) << 4;
            panel.scale_factors[b][lane] = (uint8_t) scale;
            panel.offset_factors[b][lane] = (uint8_t) offset;
            // Two blocks share their bytes: one has the low halves, one the high ones.
            const uint8_t * bytes = weights.quants + b / 2 * BLOCK;
            const int shift = b % 2 * 4;
            const __m128i first = bits(load16(bytes), shift, 15);
            const __m128i second = bits(load16(bytes + QUANT_BYTES), shift, 15);
            spread(panel.quants[b], lane, join(first, second));
        }
    }
    static void load(const Panel & panel, int block, __m256 & scale, __m256 & offset) {
        scale = _mm256_mul_ps(widen(panel.scales), numbers(panel.scale_factors[block]));
        offset = _mm256_mul_ps(widen(panel.offsets), numbers(panel.offset_factors[block]));
        offset = _mm256_sub_ps(_mm256_setzero_ps(), offset);
    }
};

template <class Type>
struct FourBit {
    using Weights = typename Type::Weights;
    using Panel = typename Type::Panel;
    static constexpr int num_blocks = Type::num_blocks;

    static void take(Panel & panel, int lane, const Weights & weights) {
        Type::take(panel, lane, weights);
    }

    template <int ROWS>
    static void multiply(const Panel & panel, int block, int64_t index, const Row * rows,
                         __m256 * total) {
        const __m256i low_half = _mm256_set1_epi8(15);
        __m256i sum[ROWS];
#pragma GCC unroll 4
        for (int part = 0; part < 4; part++) {
            const __m256i both =
                _mm256_loadu_si256((const __m256i *) (panel.quants[block] + 32 * part));
            const __m256i low = _mm256_and_si256(both, low_half);
            const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), low_half);
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; r++) {
                const int8_t * quants = rows[r].quants + BLOCK * index + 4 * part;
                const __m256i pair =
                    _mm256_add_epi16(_mm256_maddubs_epi16(low, repeat(quants)),
                                     _mm256_maddubs_epi16(high, repeat(quants + BLOCK / 2)));
                sum[r] = part == 0 ? pair : _mm256_add_epi16(sum[r], pair);
            }
        }
        __m256 scale, offset;
        Type::load(panel, block, scale, offset);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
            const __m256i whole = _mm256_madd_epi16(sum[r], _mm256_set1_epi16(1));
            const __m256 both = _mm256_mul_ps(scale, _mm256_broadcast_ss(rows[r].scales + index));
            total[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), both, total[r]);
            const float * sums = rows[r].sums + 2 * index;
            total[r] = _mm256_fmadd_ps(offset, _mm256_set1_ps(sums[0] + sums[1]), total[r]);
        }
    }
};

}  // namespace

const ArrangedProduct * four_bit_product_for(ggml_type type) {
    static const PanelProduct<FourBit<Q4_0>> q4_0;
    static const PanelProduct<FourBit<Q4_1>> q4_1;
    static const PanelProduct<FourBit<Q4_K>> q4_k;
    switch (type) {
        case GGML_TYPE_Q4_0: return &q4_0;
        case GGML_TYPE_Q4_1: return &q4_1;
        case GGML_TYPE_Q4_K: return &q4_k;
        default: return nullptr;
    }
}

}  // namespace selfserve

#pragma once

// What the products of arranged weights have in common: panels of LANES rows of a matrix.
#include <immintrin.h>

#include <cstring>

#include "product.h"

namespace selfserve {

inline __m256 widen(const uint16_t * halves) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) halves));
}

inline __m256 numbers(const uint8_t * bytes) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *) bytes)));
}

// The same four bytes in all lanes.
inline __m256i repeat(const int8_t * bytes) {
    int32_t word;
    memcpy(&word, bytes, sizeof(word));
    return _mm256_set1_epi32(word);
}

inline __m128i load16(const uint8_t * bytes) {
    return _mm_loadu_si128((const __m128i *) bytes);
}

// Of each byte, the bits of `mask` after a shift to the right.
inline __m128i bits(__m128i bytes, int shift, int mask) {
    return _mm_and_si128(_mm_srli_epi16(bytes, shift), _mm_set1_epi8((char) mask));
}

// One byte for two of four bits.
inline __m128i join(__m128i low, __m128i high) {
    return _mm_or_si128(low, _mm_slli_epi16(high, 4));
}

// Puts 16 bytes of a row in their place, by fours.
inline void spread(uint8_t * panel, int lane, __m128i bytes) {
    alignas(16) uint8_t stored[16];
    _mm_store_si128((__m128i *) stored, bytes);
    for (int part = 0; part < 4; part++) {
        memcpy(panel + 4 * LANES * part + 4 * lane, stored + 4 * part, 4);
    }
}

// The processor's own prefetching stops at the end of a page. Generating is bound by memory; with
// this it reads up to twice as fast.
inline void prefetch(const void * begin, size_t size) {
    const char * ahead = (const char *) begin + 4096;
    for (size_t i = 0; i < size; i += 64) {
        _mm_prefetch(ahead + i, _MM_HINT_T0);
    }
}

// A product whose weights lie in panels. `Type` says how:
//   Weights     one unit of a row, as in the file
//   Panel       the same of LANES rows
//   num_blocks  of such a unit
//   take        puts one row's unit into a panel
//   multiply    adds one block's products with some rows of activations to their totals
template <class Type>
class PanelProduct : public ArrangedProduct {
    using Weights = typename Type::Weights;
    using Panel = typename Type::Panel;

  public:
    size_t size(const ggml_tensor * weights) const override {
        return sizeof(Panel) * num_panels(weights) * (weights->ne[1] / LANES);
    }

    void arrange(ggml_tensor * weights, const void * data) const override {
        const int64_t count = num_panels(weights);
        Panel * panel = (Panel *) weights->data;
        for (int64_t row = 0; row < weights->ne[1]; row += LANES) {
            const Weights * rows = (const Weights *) data + row * count;
            for (int64_t i = 0; i < count; i++, panel++) {
                for (int lane = 0; lane < LANES; lane++) {
                    Type::take(*panel, lane, rows[lane * count + i]);
                }
            }
        }
    }

  protected:
    void multiply(const ggml_tensor * weights, int64_t begin, int64_t end, const Row * rows,
                  int count, float * out, int64_t stride) const override {
        const int64_t num = num_panels(weights);
        const Panel * panels = (const Panel *) weights->data;
        for (int64_t i = begin; i < end; i++) {
            const Panel * panel = panels + i * num;
            float * target = out + i * LANES;
            switch (count) {
                case 1: multiply_rows<1>(panel, num, rows, target, stride); break;
                case 2: multiply_rows<2>(panel, num, rows, target, stride); break;
                case 3: multiply_rows<3>(panel, num, rows, target, stride); break;
                default: multiply_rows<4>(panel, num, rows, target, stride);
            }
        }
    }

  private:
    // Of LANES rows.
    static int64_t num_panels(const ggml_tensor * weights) {
        return weights->ne[0] / (BLOCK * Type::num_blocks);
    }

    template <int ROWS>
    static void multiply_rows(const Panel * panel, int64_t count, const Row * rows, float * out,
                              int64_t stride) {
        __m256 total[ROWS];
        for (int r = 0; r < ROWS; r++) {
            total[r] = _mm256_setzero_ps();
        }
        for (int64_t i = 0; i < count; i++, panel++) {
            for (int block = 0; block < Type::num_blocks; block++) {
                constexpr size_t share = sizeof(Panel) / Type::num_blocks;
                prefetch((const char *) panel + share * block, share);
                Type::template multiply<ROWS>(*panel, block, i * Type::num_blocks + block, rows,
                                              total);
            }
        }
        for (int r = 0; r < ROWS; r++) {
            _mm256_storeu_ps(out + r * stride, total[r]);
        }
    }
};

}  // namespace selfserve

// Attention over a KV cache in F16, for ggml's CPU backend.
//
// The query heads that share a head of keys and values are computed together, with several tokens
// of one sequence where there are such: each tile of keys and values is widened to F32 once for all
// of them. Tiles that the mask excludes for all rows are left out, so that a sequence costs its own
// length, not that of the longest one. Softmax runs along with the tiles, as in FlashAttention-2
// (Dao, 2023). The keys are divided into parts, which several threads can compute where one
// sequence generates alone, as in Flash-Decoding (Dao and others, 2023).
#include "attention.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "sums.h"

namespace selfserve {
namespace {

constexpr int64_t TILE = 32;   // keys at once
constexpr int64_t GROUP = 48;  // query rows at once: tokens times heads
// Keys that are summed up on their own, before the sums are merged. Fixed, so that a result depends
// neither on the number of threads nor on what else is computed.
constexpr int64_t PART = 256;
constexpr int LANES = 8;

float max_of(__m256 v) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

// e to the power of x, for x up to 0; 0 below -87. Error under 2 units in the last place.
__m256 exp_of(__m256 x) {
    const __m256 in_range = _mm256_cmp_ps(x, _mm256_set1_ps(-87), _CMP_GT_OQ);
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 p = _mm256_set1_ps(1.0f / 720);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1));
    const __m256i power = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    const __m256 value = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), power));
    return _mm256_and_ps(value, in_range);
}

// What a group of query rows has seen so far. A row's result is `output / sum`.
struct Partial {
    float * largest;  // [rows], of the scores
    float * sum;      // [rows], of e to the power of score - largest
    float * output;   // [rows][size of a head]

    static int64_t num_floats(int64_t num_rows, int64_t size) {
        return num_rows * (size + 2);
    }

    Partial(float * memory, int64_t num_rows)
        : largest(memory), sum(memory + num_rows), output(memory + 2 * num_rows) {}
};

// Scores of ROWS query rows with 4 keys each.
template <int SIZE, int ROWS>
inline void score_rows(const float * queries, const float * keys, float * scores) {
    for (int64_t k = 0; k < TILE; k += 4) {
        __m256 total[ROWS][4];
        for (int r = 0; r < ROWS; r++) {
            for (int i = 0; i < 4; i++) {
                total[r][i] = _mm256_setzero_ps();
            }
        }
        for (int d = 0; d < SIZE; d += LANES) {
            __m256 query[ROWS];
            for (int r = 0; r < ROWS; r++) {
                query[r] = _mm256_loadu_ps(queries + r * SIZE + d);
            }
            for (int i = 0; i < 4; i++) {
                const __m256 key = _mm256_loadu_ps(keys + (k + i) * SIZE + d);
                for (int r = 0; r < ROWS; r++) {
                    total[r][i] = _mm256_fmadd_ps(query[r], key, total[r][i]);
                }
            }
        }
        for (int r = 0; r < ROWS; r++) {
            const __m256 low = _mm256_hadd_ps(total[r][0], total[r][1]);
            const __m256 high = _mm256_hadd_ps(total[r][2], total[r][3]);
            const __m256 all = _mm256_hadd_ps(low, high);
            _mm_storeu_ps(scores + r * TILE + k, _mm_add_ps(_mm256_castps256_ps128(all),
                                                            _mm256_extractf128_ps(all, 1)));
        }
    }
}

// Adds the values to the outputs of ROWS query rows, weighted.
template <int SIZE, int ROWS>
inline void add_values(const float * weights, const float * values, int64_t count, float * output) {
    for (int d = 0; d < SIZE; d += 4 * LANES) {
        __m256 total[ROWS][4];
        for (int r = 0; r < ROWS; r++) {
            for (int i = 0; i < 4; i++) {
                total[r][i] = _mm256_loadu_ps(output + r * SIZE + d + i * LANES);
            }
        }
        for (int64_t k = 0; k < count; k++) {
            __m256 weight[ROWS];
            for (int r = 0; r < ROWS; r++) {
                weight[r] = _mm256_broadcast_ss(weights + r * TILE + k);
            }
            for (int i = 0; i < 4; i++) {
                const __m256 value = _mm256_loadu_ps(values + k * SIZE + d + i * LANES);
                for (int r = 0; r < ROWS; r++) {
                    total[r][i] = _mm256_fmadd_ps(weight[r], value, total[r][i]);
                }
            }
        }
        for (int r = 0; r < ROWS; r++) {
            for (int i = 0; i < 4; i++) {
                _mm256_storeu_ps(output + r * SIZE + d + i * LANES, total[r][i]);
            }
        }
    }
}

// Widens `count` rows of F16; rows after these, up to a whole tile, become zero. Returns whether all
// are finite.
template <int SIZE>
inline bool widen(const char * rows, size_t stride, int64_t count, float * target) {
    const __m128i exponent = _mm_set1_epi16(0x7c00);
    __m128i special = _mm_setzero_si128();
    for (int64_t k = 0; k < count; k++, rows += stride, target += SIZE) {
        for (int d = 0; d < SIZE; d += LANES) {
            const __m128i halves = _mm_loadu_si128((const __m128i *) (rows + 2 * d));
            const __m128i is_special = _mm_cmpeq_epi16(_mm_and_si128(halves, exponent), exponent);
            special = _mm_or_si128(special, is_special);
            _mm256_storeu_ps(target + d, _mm256_cvtph_ps(halves));
        }
    }
    std::fill(target, target + (TILE - count) * SIZE, 0.0f);
    return _mm_testz_si128(special, special);
}

// As `add_values` for a row whose values are not all finite: 0 times infinity is no number, so what
// has no weight is left out.
template <int SIZE>
inline void add_seen_values(const float * weights, const float * values, int64_t count,
                            float * output) {
    for (int64_t k = 0; k < count; k++) {
        if (weights[k] != 0) {
            add_values<SIZE, 1>(weights + k, values + k * SIZE, 1, output);
        }
    }
}

// Turns scores into weights: adds the mask, scales what is known so far to the new largest score.
// What the mask hides is minus infinity whatever its score: cells out of use may hold anything.
template <int SIZE>
inline void soften(float * scores, const ggml_fp16_t * mask, float scale, float * largest,
                   float * sum, float * output) {
    const __m256 hidden = _mm256_set1_ps(-INFINITY);
    __m256 score[TILE / LANES];
    __m256 top = hidden;
    for (int i = 0; i < TILE / LANES; i++) {
        const __m128i halves = _mm_loadu_si128((const __m128i *) (mask + i * LANES));
        const __m256 added = _mm256_cvtph_ps(halves);
        const __m256 shifted = _mm256_fmadd_ps(_mm256_loadu_ps(scores + i * LANES),
                                               _mm256_set1_ps(scale), added);
        score[i] = _mm256_blendv_ps(shifted, hidden, _mm256_cmp_ps(added, hidden, _CMP_EQ_OQ));
        top = _mm256_max_ps(top, score[i]);
    }
    const float before = *largest;
    const float now = std::max(before, max_of(top));
    if (now == -INFINITY) {
        std::fill(scores, scores + TILE, 0.0f);
        return;
    }
    if (now > before) {
        const float factor = std::exp(before - now);
        *largest = now;
        *sum *= factor;
        for (int d = 0; d < SIZE; d += LANES) {
            _mm256_storeu_ps(output + d, _mm256_mul_ps(_mm256_loadu_ps(output + d),
                                                       _mm256_set1_ps(factor)));
        }
    }
    __m256 total = _mm256_setzero_ps();
    for (int i = 0; i < TILE / LANES; i++) {
        const __m256 weight = exp_of(_mm256_sub_ps(score[i], _mm256_set1_ps(now)));
        _mm256_storeu_ps(scores + i * LANES, weight);
        total = _mm256_add_ps(total, weight);
    }
    *sum += sum_of(total);
}

// How an operation is divided: into groups of query rows. Where these are too few for the threads,
// the parts of the keys are shared among them, too.
struct Division {
    int64_t heads;   // query heads that share one of the keys
    int64_t tokens;  // of a group; the last one may have fewer
    int64_t groups;
    int64_t parts;   // of the keys

    explicit Division(const ggml_tensor * op) {
        const ggml_tensor * queries = op->src[0];
        const ggml_tensor * keys = op->src[1];
        heads = queries->ne[2] / keys->ne[2];
        tokens = std::max<int64_t>(1, GROUP / heads);
        groups = (queries->ne[1] + tokens - 1) / tokens * keys->ne[2] * keys->ne[3];
        parts = (keys->ne[1] + PART - 1) / PART;
    }

    int64_t rows() const { return heads * tokens; }
    bool shares_parts(int num_threads) const { return groups < 4 * num_threads; }
};

// The place of a group.
struct Place {
    int64_t sequence, key_head, first_token, num_rows, heads;

    Place(const ggml_tensor * op, const Division & division, int64_t group)
        : heads(division.heads) {
        const int64_t key_heads = op->src[1]->ne[2];
        key_head = group % key_heads;
        sequence = group / key_heads % op->src[1]->ne[3];
        first_token = group / key_heads / op->src[1]->ne[3] * division.tokens;
        num_rows = std::min(division.tokens, op->src[0]->ne[1] - first_token) * heads;
    }

    int64_t token(int64_t row) const { return first_token + row / heads; }
    int64_t head(int64_t row) const { return key_head * heads + row % heads; }
};

// The masks of the tokens of a place for one tile of keys. A tile at the end is filled up.
struct Masks {
    const ggml_fp16_t * rows[GROUP];
    bool hide_all = true;

    Masks(const ggml_tensor * mask, const Place & place, int64_t begin, int64_t count) {
        const char * first = (const char *) mask->data + place.first_token * mask->nb[1] +
                             place.sequence % mask->ne[3] * mask->nb[3];
        for (int64_t t = 0; t < place.num_rows / place.heads; t++) {
            rows[t] = (const ggml_fp16_t *) (first + t * mask->nb[1]) + begin;
            for (int64_t i = 0; i < count && hide_all; i++) {
                hide_all = rows[t][i] == HIDDEN;
            }
            if (count < TILE) {
                std::copy(rows[t], rows[t] + count, filled[t]);
                std::fill(filled[t] + count, filled[t] + TILE, HIDDEN);
                rows[t] = filled[t];
            }
        }
    }

  private:
    static constexpr ggml_fp16_t HIDDEN = 0xfc00;  // minus infinity
    ggml_fp16_t filled[GROUP][TILE];
};

template <int SIZE>
class Attention : public ggml::cpu::tensor_traits {
  public:
    bool work_size(int num_threads, const ggml_tensor * op, size_t & size) override {
        const Division division(op);
        int64_t floats = num_threads * scratch_floats(division);
        if (division.shares_parts(num_threads)) {
            floats += division.groups * division.parts * partial_floats(division);
        }
        size = floats * sizeof(float);
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        const Division division(op);
        float * scratch = (float *) params->wdata + params->ith * scratch_floats(division);
        float * shared = (float *) params->wdata + params->nth * scratch_floats(division);
        if (params->ith == 0) {
            ggml_threadpool_chunk_set(params->threadpool, params->nth);
        }
        ggml_barrier(params->threadpool);
        if (division.shares_parts(params->nth)) {
            const int64_t count = division.groups * division.parts;
            for (int64_t i = params->ith; i < count;
                 i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
                const Place place(op, division, i / division.parts);
                const Partial partial(shared + i * partial_floats(division), division.rows());
                attend(op, place, i % division.parts, partial, scratch);
            }
            ggml_barrier(params->threadpool);
        }
        for (int64_t i = params->ith; i < division.groups;) {
            // Later tokens see more keys; who begins with them ends together with the others.
            const int64_t group = division.groups - 1 - i;
            if (division.shares_parts(params->nth)) {
                float * partials = shared + group * division.parts * partial_floats(division);
                merge_parts(op, division, group, partials);
                i += params->nth;
            } else {
                attend_parts(op, division, group, scratch);
                i = ggml_threadpool_chunk_add(params->threadpool, 1);
            }
        }
        return true;
    }

  private:
    static int64_t partial_floats(const Division & division) {
        return Partial::num_floats(division.rows(), SIZE);
    }

    // Queries, scores, a tile of keys or values, and two partial results.
    static int64_t scratch_floats(const Division & division) {
        return division.rows() * (SIZE + TILE) + TILE * SIZE + 2 * partial_floats(division);
    }

    // Part by part and merged in the same order as below: the same result, bit by bit.
    static void attend_parts(ggml_tensor * op, const Division & division, int64_t group,
                             float * scratch) {
        const Place place(op, division, group);
        const Partial whole(scratch, division.rows());
        const Partial part(scratch + partial_floats(division), division.rows());
        float * rest = scratch + 2 * partial_floats(division);
        attend(op, place, 0, whole, rest);
        for (int64_t p = 1; p < division.parts; p++) {
            if (attend(op, place, p, part, rest)) {
                merge(part, whole, place.num_rows);
            }
        }
        write(op, place, whole);
    }

    static void merge_parts(ggml_tensor * op, const Division & division, int64_t group,
                            float * partials) {
        const Place place(op, division, group);
        const Partial whole(partials, division.rows());
        for (int64_t p = 1; p < division.parts; p++) {
            merge(Partial(partials + p * partial_floats(division), division.rows()), whole,
                  place.num_rows);
        }
        write(op, place, whole);
    }

    // What the rows of a place see in one part of the keys. Returns whether they see any.
    static bool attend(const ggml_tensor * op, const Place & place, int64_t part,
                       const Partial & partial, float * scratch) {
        const ggml_tensor * k = op->src[1];
        const ggml_tensor * v = op->src[2];
        const int64_t num_rows = place.num_rows;
        float * queries = scratch;
        float * scores = queries + num_rows * SIZE;
        float * tile = scores + num_rows * TILE;
        std::fill(partial.largest, partial.largest + num_rows, -INFINITY);
        std::fill(partial.sum, partial.sum + num_rows, 0.0f);
        std::fill(partial.output, partial.output + num_rows * SIZE, 0.0f);
        bool has_queries = false;
        const char * keys =
            (const char *) k->data + place.key_head * k->nb[2] + place.sequence * k->nb[3];
        const char * values =
            (const char *) v->data + place.key_head * v->nb[2] + place.sequence * v->nb[3];
        const int64_t end = std::min((part + 1) * PART, k->ne[1]);
        for (int64_t begin = part * PART; begin < end; begin += TILE) {
            const int64_t count = std::min(TILE, end - begin);
            const Masks masks(op->src[3], place, begin, count);
            if (masks.hide_all) {
                continue;
            }
            if (!has_queries) {
                copy_queries(op->src[0], place, queries);
                has_queries = true;
            }
            widen<SIZE>(keys + begin * k->nb[1], k->nb[1], count, tile);
            in_rows(num_rows, [&](auto rows, int64_t r) {
                score_rows<SIZE, rows>(queries + r * SIZE, tile, scores + r * TILE);
            });
            float scale;
            memcpy(&scale, op->op_params, sizeof(scale));
            for (int64_t r = 0; r < num_rows; r++) {
                soften<SIZE>(scores + r * TILE, masks.rows[r / place.heads], scale,
                             partial.largest + r, partial.sum + r, partial.output + r * SIZE);
            }
            if (!widen<SIZE>(values + begin * v->nb[1], v->nb[1], count, tile)) {
                for (int64_t r = 0; r < num_rows; r++) {
                    add_seen_values<SIZE>(scores + r * TILE, tile, count, partial.output + r * SIZE);
                }
                continue;
            }
            in_rows(num_rows, [&](auto rows, int64_t r) {
                add_values<SIZE, rows>(scores + r * TILE, tile, count, partial.output + r * SIZE);
            });
        }
        return has_queries;
    }

    static void copy_queries(const ggml_tensor * q, const Place & place, float * target) {
        for (int64_t r = 0; r < place.num_rows; r++) {
            memcpy(target + r * SIZE,
                   (const char *) q->data + place.token(r) * q->nb[1] +
                       place.head(r) * q->nb[2] + place.sequence * q->nb[3],
                   SIZE * sizeof(float));
        }
    }

    // Calls `work` for all rows, three at a time as long as there are three.
    template <class Work>
    static void in_rows(int64_t num_rows, Work work) {
        int64_t r = 0;
        for (; r + 3 <= num_rows; r += 3) {
            work(std::integral_constant<int, 3>(), r);
        }
        for (; r < num_rows; r++) {
            work(std::integral_constant<int, 1>(), r);
        }
    }

    static void merge(const Partial & part, const Partial & whole, int64_t num_rows) {
        for (int64_t r = 0; r < num_rows; r++) {
            if (part.sum[r] == 0) {
                continue;
            }
            const float now = std::max(whole.largest[r], part.largest[r]);
            const float factor = std::exp(whole.largest[r] - now);
            const float other = std::exp(part.largest[r] - now);
            whole.largest[r] = now;
            whole.sum[r] = whole.sum[r] * factor + part.sum[r] * other;
            for (int d = 0; d < SIZE; d++) {
                float & value = whole.output[r * SIZE + d];
                value = value * factor + part.output[r * SIZE + d] * other;
            }
        }
    }

    static void write(ggml_tensor * op, const Place & place, const Partial & whole) {
        for (int64_t r = 0; r < place.num_rows; r++) {
            float * target =
                (float *) ((char *) op->data + place.head(r) * op->nb[1] +
                           place.token(r) * op->nb[2] + place.sequence * op->nb[3]);
            const float factor = whole.sum[r] > 0 ? 1 / whole.sum[r] : 0;
            for (int d = 0; d < SIZE; d++) {
                target[d] = whole.output[r * SIZE + d] * factor;
            }
        }
    }
};

}  // namespace

ggml::cpu::tensor_traits * attention_for(const ggml_tensor * op) {
    static Attention<64> attention_64;
    static Attention<128> attention_128;
    static Attention<256> attention_256;
    if (op->op != GGML_OP_FLASH_ATTN_EXT) {
        return nullptr;
    }
    const ggml_tensor * q = op->src[0];
    const ggml_tensor * k = op->src[1];
    const ggml_tensor * v = op->src[2];
    const ggml_tensor * mask = op->src[3];
    const float * params = (const float *) op->op_params;  // scale, ALiBi's bias, soft cap
    const bool is_plain = params[1] == 0 && params[2] == 0 && !op->src[4];
    if (!is_plain || q->type != GGML_TYPE_F32 || k->type != GGML_TYPE_F16 ||
        v->type != GGML_TYPE_F16 || k->ne[0] != v->ne[0] || k->ne[2] != v->ne[2] ||
        q->nb[0] != sizeof(float) || k->nb[0] != sizeof(ggml_fp16_t) ||
        v->nb[0] != sizeof(ggml_fp16_t) || q->ne[2] / k->ne[2] > GROUP || !mask || mask->ne[2] != 1) {
        return nullptr;
    }
    switch (k->ne[0]) {
        case 64: return &attention_64;
        case 128: return &attention_128;
        case 256: return &attention_256;
        default: return nullptr;
    }
}

}  // namespace selfserve

#include "product.h"

#include <algorithm>
#include <cstring>

namespace selfserve {
namespace {

// Values up to which each thread rounds all activations: less work than waiting for the others.
constexpr int64_t FEW_VALUES = 4096;
// How much of the output a thread takes at once: few enough rows for its cache.
constexpr int64_t PART_ROWS = 64;
constexpr int64_t PART_GROUPS = 16;

bool are_few(const ggml_tensor * input) {
    return ggml_nelements(input) <= FEW_VALUES;
}

}  // namespace

bool Product::work_size(int num_threads, const ggml_tensor * op, size_t & size) {
    const ggml_tensor * input = op->src[1];
    size = row_size(input->ne[0]) * ggml_nrows(input) * (are_few(input) ? num_threads : 1);
    return true;
}

bool Product::compute_forward(ggml_compute_params * params, ggml_tensor * op) {
    const ggml_tensor * weights = op->src[0];
    const ggml_tensor * input = op->src[1];
    const int64_t depth = weights->ne[0];
    const int64_t num_rows = ggml_nrows(input);
    const int64_t num_groups = (weights->ne[1] + LANES - 1) / LANES;
    char * rounded = (char *) params->wdata;
    const auto compute = [&](int64_t begin, int64_t end, int64_t row_begin, int64_t row_end) {
        for (int64_t row = row_begin; row < row_end; row += MAX_ROWS) {
            Row rows[MAX_ROWS];
            const int count = (int) std::min<int64_t>(MAX_ROWS, row_end - row);
            for (int r = 0; r < count; r++) {
                rows[r] = row_at(rounded, row + r, depth);
            }
            multiply(weights, begin, end, rows, count, (float *) op->data + row * op->ne[0],
                     op->ne[0]);
        }
    };
    if (are_few(input)) {
        rounded += params->ith * row_size(depth) * num_rows;
        round_rows(input, rounded, 0, 1);
        compute(num_groups * params->ith / params->nth, num_groups * (params->ith + 1) / params->nth,
                0, num_rows);
        return true;
    }
    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, params->nth);
    }
    round_rows(input, rounded, params->ith, params->nth);
    ggml_barrier(params->threadpool);
    // Four parts a thread or more: one that the system holds up takes fewer of them.
    const int64_t row_parts = (num_rows + PART_ROWS - 1) / PART_ROWS;
    const int64_t wanted = std::max<int64_t>(1, 4 * params->nth / row_parts);
    const int64_t width = std::min<int64_t>(PART_GROUPS, (num_groups + wanted - 1) / wanted);
    const int64_t group_parts = (num_groups + width - 1) / width;
    for (int64_t part = params->ith; part < row_parts * group_parts;
         part = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        const int64_t begin = part / row_parts * width;
        const int64_t row = part % row_parts * PART_ROWS;
        compute(begin, std::min(begin + width, num_groups), row,
                std::min(row + PART_ROWS, num_rows));
    }
    return true;
}

const ArrangedProduct * arranged_product_for(const ggml_tensor * weights) {
    const auto * product = four_bit_product_for(weights->type);
    if (!product) {
        product = six_bit_product_for(weights->type);
    }
    // The matrix of the output may be that of the input, too, which stays mapped as it is in the
    // file. As Q6_K it is large and read for few rows at once: not worth a copy.
    if (weights->type == GGML_TYPE_Q6_K && !strcmp(weights->name, "token_embd.weight")) {
        return nullptr;
    }
    const bool fits = ggml_n_dims(weights) == 2 && weights->ne[1] % LANES == 0 &&
                      weights->ne[0] % ggml_blck_size(weights->type) == 0;
    return fits ? product : nullptr;
}

}  // namespace selfserve

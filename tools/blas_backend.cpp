// ggml's BLAS backend with a product of its own, kept to the weights for which it is faster.
//
// As ggml has it, it takes every product with 32 or more rows, also those for which the CPU
// backend has kernels that are up to four times faster; it unpacks a whole matrix to F32, which
// for the head of a large vocabulary is gigabytes; and the threads of OpenBLAS meet the ones of
// OpenMP. Here each thread of OpenMP unpacks some rows of the weights and multiplies them alone,
// while they are in its cache, and takes the next ones: a thread that the system holds up holds
// nobody up.
#include "ggml-backend-impl.h"

#undef GGML_BACKEND_DL_IMPL
#define GGML_BACKEND_DL_IMPL(unused)
#include "ggml-blas.cpp"

namespace {

// Below so many rows of activations, unpacking takes longer than the faster product saves.
constexpr int64_t MIN_ROWS = 48;
// Rows of weights that a thread unpacks at once, into memory that it keeps.
constexpr int64_t SLAB = 128;

bool supports_op(ggml_backend_dev_t device, const ggml_tensor * op) {
    if (op->op == GGML_OP_MUL_MAT) {
        const ggml_tensor * weights = op->src[0];
        return (weights->type == GGML_TYPE_Q4_1 || weights->type == GGML_TYPE_Q5_1) &&
               ggml_is_matrix(weights) && ggml_is_contiguous(op) && ggml_nrows(op) >= MIN_ROWS &&
               ggml_nrows(op) <= INT32_MAX && ggml_backend_blas_device_supports_op(device, op);
    }
    return op->op != GGML_OP_OUT_PROD && ggml_backend_blas_device_supports_op(device, op);
}

void multiply(int num_threads, ggml_tensor * product) {
    const ggml_tensor * weights = product->src[0];
    const ggml_tensor * input = product->src[1];
    const int64_t depth = weights->ne[0];
    const int64_t width = weights->ne[1];
    const ggml_to_float_t unpack = ggml_get_type_traits(weights->type)->to_float;
#pragma omp parallel for schedule(dynamic) num_threads(num_threads)
    for (int64_t begin = 0; begin < width; begin += SLAB) {
        thread_local std::vector<float> unpacked;
        const int64_t count = std::min(SLAB, width - begin);
        unpacked.resize(std::max(unpacked.size(), size_t(SLAB * depth)));
        unpack((const char *) weights->data + begin * weights->nb[1], unpacked.data(),
               count * depth);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, ggml_nrows(input), count, depth,
                    1.0f, (const float *) input->data, depth, unpacked.data(), depth,
                    0.0f, (float *) product->data + begin, width);
    }
}

ggml_status compute(ggml_backend_t backend, ggml_cgraph * graph) {
    const int num_threads = ((ggml_backend_blas_context *) backend->context)->n_threads;
    for (int i = 0; i < graph->n_nodes; i++) {
        ggml_tensor * node = graph->nodes[i];
        if ((node->flags & GGML_TENSOR_FLAG_COMPUTE) && node->op == GGML_OP_MUL_MAT) {
            multiply(num_threads, node);
        }
    }
    return GGML_STATUS_SUCCESS;
}

ggml_backend_t init_backend(ggml_backend_dev_t, const char *) {
    openblas_set_num_threads(1);
    ggml_backend_t backend = ggml_backend_blas_init();
    backend->iface.graph_compute = compute;
    return backend;
}

}  // namespace

extern "C" {
GGML_BACKEND_API ggml_backend_reg_t ggml_backend_init(void);
}

// What ggml_backend_load calls.
ggml_backend_reg_t ggml_backend_init(void) {
    ggml_backend_reg_t registry = ggml_backend_blas_reg();
    ggml_backend_dev_t device = ggml_backend_reg_dev_get(registry, 0);
    device->iface.supports_op = supports_op;
    device->iface.init_backend = init_backend;
    return registry;
}

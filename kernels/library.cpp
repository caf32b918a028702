// How ggml's CPU backend finds the kernels: as one more of its "extra buffer types". ggml asks each
// of these which weights it would hold, and before every operation whether it computes that.
#include "attention.h"
#include "product.h"

#include "ggml-cpu.h"

using selfserve::ArrangedProduct;
using selfserve::arranged_product_for;

namespace {

ggml_backend_buffer_type_t buffer_type();

class Kernels : public ggml::cpu::extra_buffer_type {
    bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) override {
        return has_arranged_weights(op) && ggml_is_contiguous(op) &&
               op->src[1]->type == GGML_TYPE_F32 && op->src[1]->nb[0] == sizeof(float) &&
               (!op->src[1]->buffer || ggml_backend_buft_is_host(op->src[1]->buffer->buft));
    }

    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        if (has_arranged_weights(op)) {
            return (ArrangedProduct *) op->src[0]->extra;
        }
        if (auto * product = selfserve::product_in_place_for(op)) {
            const ggml_backend_buffer_t buffer = op->src[0]->buffer;
            return buffer && ggml_backend_buffer_is_host(buffer) ? product : nullptr;
        }
        return selfserve::attention_for(op);
    }

    static bool has_arranged_weights(const ggml_tensor * op) {
        return op->op == GGML_OP_MUL_MAT && op->src[0]->buffer &&
               op->src[0]->buffer->buft == buffer_type() && arranged_product_for(op->src[0]);
    }
};

ggml_status init_tensor(ggml_backend_buffer_t, ggml_tensor * tensor) {
    tensor->extra = const_cast<ArrangedProduct *>(arranged_product_for(tensor));
    return GGML_STATUS_SUCCESS;
}

void set_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset,
                size_t size) {
    GGML_ASSERT(offset == 0 && size == ggml_nbytes(tensor));
    ((ArrangedProduct *) tensor->extra)->arrange(tensor, data);
}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    ggml_backend_buffer_t buffer =
        ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    if (buffer) {
        buffer->buft = type;
        buffer->iface.init_tensor = init_tensor;
        buffer->iface.set_tensor = set_tensor;
        buffer->iface.get_tensor = nullptr;
        buffer->iface.cpy_tensor = nullptr;
    }
    return buffer;
}

size_t alloc_size(ggml_backend_buffer_type_t, const ggml_tensor * tensor) {
    const ArrangedProduct * product = arranged_product_for(tensor);
    return product ? product->size(tensor) : ggml_nbytes(tensor);
}

ggml_backend_buffer_type_t buffer_type() {
    static ggml_backend_buffer_type type = {
        /* .iface   = */ {
            /* .get_name       = */ [](ggml_backend_buffer_type_t) { return "CPU_SELF"; },
            /* .alloc_buffer   = */ alloc_buffer,
            /* .get_alignment  = */ [](ggml_backend_buffer_type_t) { return size_t(64); },
            /* .get_max_size   = */ nullptr,
            /* .get_alloc_size = */ alloc_size,
            /* .is_host        = */ nullptr,
        },
        /* .device  = */ ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0),
        /* .context = */ new Kernels(),
    };
    return &type;
}

}  // namespace

// Makes the kernels known to ggml. To be called once, before the first model is loaded: ggml reads
// the list then and keeps it.
extern "C" __attribute__((visibility("default"))) void selfserve_add_kernels() {
    auto & types = ggml_backend_cpu_get_extra_buffer_types();
    types.insert(types.begin(), buffer_type());
}

#pragma once

#include <cstdint>

#include "activations.h"
#include "traits.h"

namespace selfserve {

constexpr int LANES = 8;     // rows of weights that are computed side by side
constexpr int MAX_ROWS = 4;  // rows of activations that are computed side by side

// The product of a matrix of weights with rows of activations: rounds these and divides the work.
// What it computes for a row is the same whatever other rows there are, and however many threads.
class Product : public ggml::cpu::tensor_traits {
  public:
    bool work_size(int num_threads, const ggml_tensor * op, size_t & size) override;
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override;

  protected:
    // Computes `count` rows, up to MAX_ROWS, with the weights' rows of some groups of LANES. The
    // last group may have fewer. `out` is the first value, `stride` the values of a row of output.
    virtual void multiply(const ggml_tensor * weights, int64_t begin, int64_t end,
                          const Row * rows, int count, float * out, int64_t stride) const = 0;
};

// A product whose weights lie in an order of their own.
class ArrangedProduct : public Product {
  public:
    // Bytes of a matrix in that order.
    virtual size_t size(const ggml_tensor * weights) const = 0;
    // Copies weights as they lie in the file to `weights->data`, in that order.
    virtual void arrange(ggml_tensor * weights, const void * data) const = 0;
};

// For a matrix that would lie in a buffer of ours; nullptr where ggml keeps it.
const ArrangedProduct * arranged_product_for(const ggml_tensor * weights);

// The same for matrices of one kind of types only.
const ArrangedProduct * four_bit_product_for(ggml_type type);
const ArrangedProduct * six_bit_product_for(ggml_type type);

// For a matrix that lies as in the file; nullptr where ggml computes the product.
Product * product_in_place_for(const ggml_tensor * op);

}  // namespace selfserve

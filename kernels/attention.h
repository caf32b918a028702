#pragma once

#include "traits.h"

namespace selfserve {

// The kernel for an attention operation, or nullptr where ggml computes it.
ggml::cpu::tensor_traits * attention_for(const ggml_tensor * op);

}  // namespace selfserve

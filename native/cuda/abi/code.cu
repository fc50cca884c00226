/* SPDX-License-Identifier: Apache-2.0
 * Which kernels this build has for a device. PYSIM_GPU_ARCHS is Meson's list of architectures, "90a:ptx80". The driver selects machine code of the device's
 * major capability with the highest minor not above the device's; otherwise it compiles the PTX of the highest capability not above the device's (CUDA
 * C++ Programming Guide, "Binary Compatibility", "PTX Compatibility"). Code with an `a` suffix (90a) runs on that capability only; wgmma kernels have
 * no other. */
#include <cstdlib>
#include <cstring>

#include "abi/arguments.h"
#include "core/launch.h"

namespace pysim {
namespace {
#ifdef PYSIM_GPU_ARCHS
/* Calls body(capability, exact, ptx) for each architecture. */
template <class Body> void each_code(Body body) {
    for (const char *at = PYSIM_GPU_ARCHS; at; at = strchr(at, ':')) {
        at += *at == ':';
        const bool ptx = !strncmp(at, "ptx", 3);
        char *end = nullptr;
        const int capability = (int)strtol(at + 3 * ptx, &end, 10);
        body(capability, *end == 'a', ptx);
    }
}
/* The capability for which the code that a device runs was compiled; 0: none. */
int code_for(int device) {
    int binary = 0, ptx = 0;
    each_code([&](int capability, bool exact, bool is_ptx) {
        const bool runs = capability <= device && (exact ? capability == device : is_ptx || capability / 10 == device / 10);
        int &best = is_ptx ? ptx : binary;
        if (runs && capability > best) best = capability;
    });
    return binary ? binary : ptx;
}
bool is_built(int device, int capability, bool exact) {
    bool found = false;
    each_code([&](int of, bool alone, bool) { found = found || (alone && of == capability); });
    return exact ? found : code_for(device) >= capability;
}
#else
int code_for(int device) { return device; } /* emulated/ */
bool is_built(int, int, bool) { return true; }
#endif
}

bool has_dependent_launch() {
    int device = 0, major = 0, minor = 0;
    const bool known = cudaGetDevice(&device) == cudaSuccess &&
                       cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
                       cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess;
    return known && code_for(10 * major + minor) >= 90;
}

pysim_status sms_of(const char *kernel, int32_t capability, bool exact, int below, int replaced_on, int *sms) {
    int device = 0, major = 0, minor = 0;
    pysim_status status = check(cudaGetDevice(&device), "the current device");
    if (status == PYSIM_OK) status = check(cudaDeviceGetAttribute(sms, cudaDevAttrMultiProcessorCount, device), "its multiprocessors");
    if (status == PYSIM_OK) status = check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "its capability");
    if (status == PYSIM_OK) status = check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "its capability");
    if (status != PYSIM_OK) return status;
    const int have = 10 * major + minor;
    if (have < capability || (exact && have != capability))
        return fail(PYSIM_UNSUPPORTED, "kernel %s needs capability %d.%d%s; this device has %d.%d", kernel, capability / 10,
                    capability % 10, exact ? " and no other" : "", major, minor);
    if (!is_built(have, capability, exact))
        return fail(PYSIM_UNSUPPORTED, "kernel %s is not built for sm_%d; -Dgpu_archs=%d%s builds it", kernel, have, have,
                    exact ? "a" : "");
    if (below && !ABLATIONS && code_for(have) >= below)
        return fail(PYSIM_UNSUPPORTED, "kernel %s is replaced from capability %d.%d on; -Dtests=true builds it", kernel, below / 10,
                    below % 10);
    if (replaced_on && !ABLATIONS && code_for(have) == replaced_on)
        return fail(PYSIM_UNSUPPORTED, "kernel %s is replaced on capability %d.%d; -Dtests=true builds it", kernel, replaced_on / 10,
                    replaced_on % 10);
    return PYSIM_OK;
}
}

"""Older processors, rehearsed on newer ones: by the variables that hide instructions from who would use them.

`make rehearse AS=avx2` runs the tests and the demo as on a processor that has AVX2 and nothing newer; with `AS=sse`, as
on one without AVX2.
"""

import sys

# PyTorch's own kernels, oneDNN's, those of MKL and those of CTranslate2
PROCESSORS = {
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "CT2_FORCE_CPU_ISA": "AVX2",
    },
    "sse": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "CT2_FORCE_CPU_ISA": "GENERIC",
    },
}

if __name__ == "__main__":
    print(*(f"{name}={value}" for name, value in PROCESSORS[sys.argv[1]].items()))

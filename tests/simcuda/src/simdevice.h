/* What tests/simcommon needs to know of this device. */
#ifndef SIMDEVICE_H
#define SIMDEVICE_H

#define SIM_DEVICE simcuda
#define SIM_NAME "simcuda"
#define SIM_ENV "SIMCUDA"
#define SIM_VISIBLE "CUDA_VISIBLE_DEVICES"
#define SIM_ASCENDING 0

enum {
    SIM_OUT_OF_MEMORY = 2, /* CUDA_ERROR_OUT_OF_MEMORY */
    SIM_BROKEN = 304,      /* CUDA_ERROR_OPERATING_SYSTEM */
};

#endif

/* What tests/simcommon needs to know of this device. */
#ifndef SIMDEVICE_H
#define SIMDEVICE_H

#define SIM_DEVICE simcann
#define SIM_NAME "simcann"
#define SIM_ENV "SIMCANN"
#define SIM_VISIBLE "ASCEND_RT_VISIBLE_DEVICES"
#define SIM_ASCENDING 1

/* The lowest layer is the HAL. */
enum {
    SIM_OUT_OF_MEMORY = 6, /* DRV_ERROR_OUT_OF_MEMORY */
    SIM_BROKEN = 7,        /* DRV_ERROR_INNER_ERR */
};

#endif

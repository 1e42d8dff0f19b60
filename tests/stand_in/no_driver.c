/* Stands in for NVIDIA's driver and CUDA's runtime where there is neither, so that cuDNN can be asked whether it takes an operation for
 * a card that is described to it. Both libraries in one file. Kernels that cuDNN compiles can be "loaded", since it looks whether they
 * can; every other call that is not about versions fails. */
#include <string.h>

/* CUDA_ERROR_NO_DEVICE, cudaErrorNoDevice. */
enum { NO_DEVICE = 100, CUDA_VERSION = 13000 };

int cuInit(unsigned flags) { (void)flags; return NO_DEVICE; }
int cuDriverGetVersion(int *version) { *version = CUDA_VERSION; return 0; }
int cuGetErrorName(int error, const char **name) { (void)error; *name = "NO_DEVICE"; return 0; }
int cuGetErrorString(int error, const char **text) { (void)error; *text = "no device"; return 0; }

static int no_device(void) { return NO_DEVICE; }

/* Loading a kernel: the first argument is where a handle goes. */
static int a_handle;
#define LOAD(name) int name(void **handle) { *handle = &a_handle; return 0; }
LOAD(cuLibraryLoadData) LOAD(cuLibraryGetKernel) LOAD(cuLibraryGetModule) LOAD(cuModuleLoadData) LOAD(cuModuleLoadDataEx)
LOAD(cuModuleLoadFatBinary) LOAD(cuModuleGetFunction) LOAD(cuKernelGetFunction)
#define AGREE(name) int name(void) { return 0; }
AGREE(cuKernelSetAttribute) AGREE(cuFuncSetAttribute) AGREE(cuLibraryUnload) AGREE(cuModuleUnload)
int cuFuncGetAttribute(int *value) { *value = 0; return 0; }
int cuKernelGetAttribute(int *value) { *value = 0; return 0; }

int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, void *status) {
  (void)version, (void)flags;
  *function = !strcmp(name, "cuInit") ? (void *)cuInit
              : !strcmp(name, "cuDriverGetVersion") ? (void *)cuDriverGetVersion
              : !strcmp(name, "cuGetErrorName") ? (void *)cuGetErrorName
              : !strcmp(name, "cuGetErrorString") ? (void *)cuGetErrorString
                                                  : (void *)no_device;
  if (status) *(int *)status = 0;
  return 0;
}
int cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags) {
  return cuGetProcAddress_v2(name, function, version, flags, 0);
}

#define REFUSE(name) int name(void) { return NO_DEVICE; }
REFUSE(cuCtxGetCurrent) REFUSE(cuCtxGetDevice) REFUSE(cuCtxPopCurrent) REFUSE(cuCtxPushCurrent) REFUSE(cuCtxSetCurrent)
REFUSE(cuDeviceGet) REFUSE(cuDeviceGetAttribute) REFUSE(cuDeviceGetCount) REFUSE(cuDeviceGetName)
REFUSE(cuDevicePrimaryCtxRelease) REFUSE(cuDevicePrimaryCtxRetain)
REFUSE(cuGetExportTable) REFUSE(cuLaunchKernel) REFUSE(cuLaunchKernelEx)

REFUSE(cuOccupancyMaxActiveClusters)
REFUSE(cuTensorMapEncodeTiled) REFUSE(cuTensorMapEncodeIm2col) REFUSE(cuStreamGetCaptureInfo) REFUSE(cuStreamIsCapturing)

REFUSE(cuCtxGetLimit) REFUSE(cuDevicePrimaryCtxReset) REFUSE(cuLaunchCooperativeKernel)
REFUSE(cuLibraryLoadFromFile) REFUSE(cuLinkAddData) REFUSE(cuLinkAddData_v2) REFUSE(cuLinkAddFile_v2) REFUSE(cuLinkComplete)
REFUSE(cuLinkCreate) REFUSE(cuLinkCreate_v2) REFUSE(cuLinkDestroy) REFUSE(cuMemcpyDtoH_v2) REFUSE(cuModuleGetGlobal_v2)
REFUSE(cuOccupancyMaxActiveBlocksPerMultiprocessor)
REFUSE(cuOccupancyMaxPotentialClusterSize) REFUSE(cuStreamSynchronize)

int cudaDriverGetVersion(int *version) { *version = CUDA_VERSION; return 0; }
int cudaRuntimeGetVersion(int *version) { *version = CUDA_VERSION; return 0; }
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaGetDeviceCount(int *count) { *count = 0; return NO_DEVICE; }
int cudaGetLastError(void) { return 0; }
int cudaPeekAtLastError(void) { return 0; }
const char *cudaGetErrorName(int error) { (void)error; return "NO_DEVICE"; }
const char *cudaGetErrorString(int error) { (void)error; return "no device"; }
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  /* cudaDevAttrComputeCapabilityMajor; the others are read from the card's description. */
  *value = attribute == 75 ? 9 : 0;
  return 0;
}
/* Of `cudaDeviceProp` only the compute capability, at these places in CUDA 13's. */
int cudaGetDeviceProperties(char *properties, int device) {
  (void)device;
  int major = 9, minor = 0;
  memcpy(properties + 360, &major, sizeof major);
  memcpy(properties + 364, &minor, sizeof minor);
  return 0;
}

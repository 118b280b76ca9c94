/* The one function of Windows' bcryptprimitives.dll that Rust's standard library calls, for Wine before version 9, which has no such
 * library. Tests under Wine use it; nothing that is published does. */
#include <windows.h>

/* RtlGenRandom, as advapi32.dll exports it. */
BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T size) {
    while (size > 0) {
        ULONG part = size > 0x10000000 ? 0x10000000 : (ULONG)size;
        if (!SystemFunction036(data, part)) return FALSE;
        data += part;
        size -= part;
    }
    return TRUE;
}

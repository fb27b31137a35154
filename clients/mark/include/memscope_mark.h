/*
 * memscope_mark.h: names moments of a program for memscope.
 *
 * Link with -lmemscope_mark. All functions may be called from any thread at any time, do nothing to the
 * program, and cannot fail. While nobody listens, a mark costs a call and a return (and the length of its
 * name, where the name is a C string).
 *
 * A name is UTF-8. Readers take its first 128 bytes.
 */
#ifndef MEMSCOPE_MARK_H
#define MEMSCOPE_MARK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Kinds of memscope_event. */
#define MEMSCOPE_INSTANT 0u /* a moment */
#define MEMSCOPE_BEGIN   1u /* a range begins */
#define MEMSCOPE_END     2u /* a range ends */
#define MEMSCOPE_STEP    3u /* a step ends, and the next one begins */

/*
 * Names this moment. NULL: a moment without a name.
 */
void memscope_mark(const char *name);

/*
 * Begins a range and returns its number, which is never 0 and which no other range of the process has.
 * Ranges need not be nested, and may end in another thread. NULL: a range without a name.
 */
uint64_t memscope_range_begin(const char *name);

/*
 * Ends the range with this number; 0: the innermost one of the thread.
 */
void memscope_range_end(uint64_t range);

/*
 * Ends a step and begins the next one.
 */
void memscope_step(void);

/*
 * A check sum of `length` bytes that can be read: the CRC-64 that msMemScope writes of memory that is watched.
 */
uint64_t memscope_checksum(const uint8_t *data, size_t length);

/*
 * The function that memscope has its probe on, and that the others call: for bindings of other languages,
 * and for names that do not end with a NUL.
 *
 * kind    one of MEMSCOPE_INSTANT, MEMSCOPE_BEGIN, MEMSCOPE_END, MEMSCOPE_STEP
 * range   number of the range that begins or ends; 0: none. Numbers from memscope_range_begin are unique;
 *         who makes his own sees to that himself.
 * name    UTF-8, `length` bytes, no NUL needed; may be NULL where length is 0
 */
void memscope_event(uint32_t kind, uint64_t range, const char *name, size_t length);

#ifdef __cplusplus
}
#endif

#endif

/* Exports the layout of smbox/native/native.h: format, sizes and offsets of the structs, then the
 * values of the constants. test_layout.py compiles it and compares it with smbox/memory/layout.py. */
#include "native.h"

EXPORT extern const u64 smbox_layout[];

#define AT(kind, member) offsetof(struct kind, member)
const u64 smbox_layout[] = {
    SMBOX_FORMAT,
    sizeof(struct stripe), AT(stripe, sequence), AT(stripe, writer), AT(stripe, holder),
    sizeof(struct region_header), AT(region_header, magic), AT(region_header, format),
    AT(region_header, state),
    sizeof(struct slot), AT(slot, magic), AT(slot, format), AT(slot, id), AT(slot, pid),
    AT(slot, pid_started), AT(slot, state), AT(slot, stripe), AT(slot, first),
    AT(slot, progress), AT(slot, extents), AT(slot, region), AT(slot, channel),
    AT(slot, serial), AT(slot, number), AT(slot, ring), AT(slot, ring_offset),
    sizeof(struct channel_row), AT(channel_row, client_low), AT(channel_row, client_high),
    AT(channel_row, channel), AT(channel_row, applied), AT(channel_row, used),
    AT(channel_row, generation), AT(channel_row, serial),
    sizeof(struct ring_entry), AT(ring_entry, number), AT(ring_entry, nbytes),
    sizeof(struct region), AT(region, header), AT(region, table), AT(region, data),
    AT(region, nbytes), AT(region, address), AT(region, stripe_nbytes),
    AT(region, dtype), AT(region, consistency),
    sizeof(struct writer), AT(writer, slot), AT(writer, holder),
    AT(writer, block_nbytes),
    sizeof(struct channel), AT(channel, row), AT(channel, index), AT(channel, ring),
    AT(channel, ring_base), AT(channel, ring_offset), AT(channel, entry_nbytes),
    sizeof(struct order), AT(order, kernel), AT(order, operand), AT(order, output),
    AT(order, extents), AT(order, region), AT(order, first), AT(order, limit), AT(order, source),
    AT(order, source_nbytes), AT(order, scale), AT(order, parameters), AT(order, output_to),
    AT(order, channel), AT(order, number), AT(order, done), AT(order, result), AT(order, blocked),
    AT(order, stripe),
    sizeof(struct reading), AT(reading, region), AT(reading, first), AT(reading, limit),
    AT(reading, places), AT(reading, count), AT(reading, row_nbytes), AT(reading, out),
    AT(reading, operand), AT(reading, done), AT(reading, result), AT(reading, stripe),
    RING_ENTRIES, EXTENTS_MAX, SEQUENCE_OPEN, SEQUENCE_UNDONE, SEQUENCE_UNDONE_MASK,
    SEQUENCE_COMMIT,
    SLOT_FREE, SLOT_ARMED, SLOT_COMMITTED, SLOT_STATE, SLOT_COMMITS, SLOT_PAGE_NBYTES,
    REGION_FREED, STRIPE_BY_STRIPE, WITHOUT_LOCKS,
    DTYPE_BOOL, DTYPE_INT8, DTYPE_INT16, DTYPE_INT32, DTYPE_INT64, DTYPE_UINT8, DTYPE_UINT16,
    DTYPE_UINT32, DTYPE_UINT64, DTYPE_FLOAT16, DTYPE_BFLOAT16, DTYPE_FLOAT32, DTYPE_FLOAT64,
    REPLACE, SUM, MIN, MAX, ELASTIC, COMPARE_SWAP, ARRIVE, WITHDRAW, SCATTER_PUT, SCATTER_SUM,
    SCALE, MOMENTUM, NESTEROV, ADAGRAD, ADAM,
    OUTPUT_NOTHING, OUTPUT_MOVED, OUTPUT_DELTA, OUTPUT_OLD, OUTPUT_NEW,
    DONE, BUSY, OPEN, FREED, BAD_ORDER, NOT_OWN,
};

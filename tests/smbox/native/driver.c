/* Runs orders from standard input on private memory: tests the library without Python.
 *
 *     in    struct request, doubles parameters[4], the regions' data, the source
 *     out   u64 result, the regions' data, the answer, the stripes' sequence words, the double that
 *           is the dot product of the first region with itself (0: not of floats)
 *
 * Compiled with sanitizers, and for other processors. All memory has exactly the needed size, so that
 * sanitizers find every overrun. The source has an odd address, as a message's payload may.
 */
#include "native.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct request {
    u64 kernel, dtype, operand, output, extents, level;
    u64 nbytes; /* of each region */
    u64 source_nbytes, answer_nbytes, consistency, stripe_nbytes, block_nbytes;
    i64 scale;     /* an integer, or the bits of a double */
    u64 in_place;  /* the output overwrites the source */
    u64 has_channel;
};

static void *allocate(u64 nbytes) {
    void *found = calloc(nbytes ? nbytes : 1, 1);
    if (!found)
        exit(2);
    return found;
}

static int take(void *to, u64 nbytes) { return fread(to, 1, nbytes, stdin) == nbytes; }

static void give(const void *from, u64 nbytes) {
    if (fwrite(from, 1, nbytes, stdout) != nbytes)
        exit(3);
}

static const u64 holder = 7;

/* Compare what the reader returns with the region. */
static void check_read(struct region *region) {
    u8 *out = allocate(region->nbytes);
    struct reading reading = {.region = region, .limit = region->nbytes, .out = out};
    reading.operand = region->dtype;
    if (smbox_read(&reading, &holder) != DONE || memcmp(out, region->data, region->nbytes))
        exit(4);
    free(out);
}

static void run(const struct request *request) {
    static struct region_header headers[EXTENTS_MAX];
    struct region regions[EXTENTS_MAX];
    u64 stripe_nbytes = request->stripe_nbytes;
    struct slot *slot = allocate(SLOT_PAGE_NBYTES + (request->extents - 1) * stripe_nbytes +
                                 smaller(request->nbytes, stripe_nbytes));
    struct writer writer = {.slot = slot, .holder = &holder, .block_nbytes = request->block_nbytes};
    struct order order = {.kernel = request->kernel, .operand = request->operand};
    struct channel_row *row = allocate(sizeof *row);
    struct channel channel = {.row = row};
    u64 stripes = (request->nbytes + stripe_nbytes - 1) / stripe_nbytes;
    double parameters[4];
    if (!take(parameters, sizeof parameters))
        exit(5);
    slot->id = holder;
    for (u64 at = 0; at < request->extents; at++) {
        headers[at].state = 2;
        regions[at] = (struct region){.header = &headers[at], .nbytes = request->nbytes};
        regions[at].table = allocate(stripes * sizeof(struct stripe));
        regions[at].data = allocate(request->nbytes);
        regions[at].address = (at + 1) << 20;
        regions[at].stripe_nbytes = stripe_nbytes;
        regions[at].dtype = request->dtype;
        regions[at].consistency = request->consistency;
        order.region[at] = &regions[at];
        if (!take(regions[at].data, request->nbytes))
            exit(6);
    }
    u8 *source = allocate(request->source_nbytes + 1), *answer = allocate(request->answer_nbytes);
    if (!take(source + 1, request->source_nbytes))
        exit(7);
    order.extents = request->extents;
    order.limit = request->nbytes;
    order.source = source + 1;
    order.source_nbytes = request->source_nbytes;
    order.scale.whole = request->scale;
    order.parameters = request->kernel >= MOMENTUM ? parameters : NULL;
    order.output = request->output;
    order.output_to = request->in_place        ? source + 1
                    : request->answer_nbytes ? answer
                                             : NULL;
    order.channel = request->has_channel ? &channel : NULL;
    order.number = 1;
    smbox_level(request->level);
    smbox_commit(&writer, &order, 1);
    if (request->has_channel && order.result == DONE && row->applied != stripes)
        exit(8);
    give(&order.result, sizeof order.result);
    for (u64 at = 0; at < request->extents; at++) {
        check_read(&regions[at]);
        give(regions[at].data, request->nbytes);
    }
    give(request->in_place ? source + 1 : answer, request->answer_nbytes);
    double square = 0;
    smbox_dot(regions[0].data, regions[0].data, request->nbytes >> shift_of(request->dtype),
              request->dtype, &square);
    for (u64 at = 0; at < request->extents; at++) {
        for (u64 stripe = 0; stripe < stripes; stripe++) {
            u64 sequence = load_relaxed(&regions[at].table[stripe].sequence);
            give(&sequence, sizeof sequence);
        }
        free(regions[at].table);
        free(regions[at].data);
    }
    give(&square, sizeof square);
    free(source);
    free(answer);
    free(slot);
    free(row);
}

int main(void) {
    struct request request;
    while (take(&request, sizeof request))
        run(&request);
    return 0;
}

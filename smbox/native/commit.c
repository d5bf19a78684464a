/* The commit: the only procedure that changes bytes of a region.
 *
 *     lock the stripes of all extents in ascending order, a word each
 *     region freed, or a stripe open (its writer died): stop
 *     slot = ARMED with everything recovery needs; stripe.writer = slot; sequence word open
 *     block by block: old bytes into the slot, progress published, then the kernel
 *     slot = COMMITTED        <- one store: before it the commit is undone, after it completed
 *     applied[channel] = number; close every stripe; slot FREE; unlock
 */
#include "copy.h"

#include <math.h>

/* A commit in progress: the part of an order that lies in one stripe. */
struct commit {
    struct writer *writer;
    const struct order *order;
    u64 stripe, first, limit;
    u64 number;
    u8 *old;       /* receives the old bytes of extent 0: the slot's undo area, or the channel's ring */
    u8 *output_to; /* receives the output: the caller's memory, or the channel's ring; or NULL */
    struct ring_entry *answer; /* head of the ring entry that receives the output, or NULL */
    kernel_fn *kernel;
    double parameters[5]; /* of the optimizer's kernel */
};

static int is_whole(u64 kernel) { return kernel >= COMPARE_SWAP && kernel <= SCATTER_SUM; }

static u64 states_of(u64 optimizer) { return optimizer == ADAM ? 2 : 1; }

/* ---- validation of orders --------------------------------------------------------------------- */

/* The operand is count, row_nbytes, places, values. */
static int has_good_scatter(const struct order *order) {
    u64 itemsize = itemsize_of(order->region[0]->dtype);
    u64 count, row_nbytes, place;
    if (order->source_nbytes < 16 || order->operand != order->region[0]->dtype)
        return 0;
    memcpy(&count, order->source, 8);
    memcpy(&row_nbytes, order->source + 8, 8);
    u64 nbytes = order->limit - order->first;
    if (!row_nbytes || row_nbytes % itemsize || row_nbytes > nbytes || count > order->source_nbytes)
        return 0;
    if (order->source_nbytes != 16 + count * (8 + row_nbytes))
        return 0;
    for (u64 at = 0; at < count; at++) {
        memcpy(&place, order->source + 16 + 8 * at, 8);
        if (place >= nbytes / row_nbytes)
            return 0;
    }
    return 1;
}

static int has_good_source(const struct order *order) {
    u64 dtype = order->region[0]->dtype, itemsize = itemsize_of(dtype);
    u64 count = (order->limit - order->first) >> shift_of(dtype);
    switch (order->kernel) {
    case COMPARE_SWAP:
        return count == 1 && order->source_nbytes == 2 * itemsize;
    case ARRIVE:
    case WITHDRAW:
        return itemsize == 8 && count > 3 && order->source_nbytes == 8;
    case SCATTER_PUT:
    case SCATTER_SUM:
        return has_good_scatter(order);
    case SCALE:
        return !order->source_nbytes;
    default:
        return order->source_nbytes == count * itemsize_of(order->operand);
    }
}

static int is_in_region(const struct order *order, const struct region *region) {
    u64 itemsize = itemsize_of(region->dtype);
    return order->first < order->limit && order->limit <= region->nbytes &&
           order->done >= order->first && order->done <= order->limit &&
           order->first % itemsize == 0 && order->limit % itemsize == 0;
}

static int is_good(const struct order *order) {
    const struct region *main = order->region[0];
    if (order->extents < 1 || order->extents > EXTENTS_MAX || !is_in_region(order, main))
        return 0;
    for (u64 at = 1; at < order->extents; at++) {
        const struct region *other = order->region[at];
        if (other->dtype != main->dtype || other->nbytes != main->nbytes ||
            other->stripe_nbytes != main->stripe_nbytes || other->consistency != STRIPE_BY_STRIPE ||
            main->consistency != STRIPE_BY_STRIPE)
            return 0;
        for (u64 before = 0; before < at; before++)
            if (order->region[before]->address == other->address)
                return 0; /* it would wait for itself */
    }
    if (order->kernel >= MOMENTUM && (order->extents != states_of(order->kernel) + 1 || !order->parameters))
        return 0;
    if (is_whole(order->kernel) &&
        order->first / main->stripe_nbytes != (order->limit - 1) / main->stripe_nbytes)
        return 0;
    return has_good_source(order);
}

/* ---- locks ------------------------------------------------------------------------------------ */

/* Sort the extents by their address: two writers never wait for each other. */
static void sort_extents(const struct order *order, u64 ranks[]) {
    for (u64 at = 0; at < order->extents; at++) {
        u64 place = at;
        u64 address = order->region[at]->address;
        for (; place && order->region[ranks[place - 1]]->address > address; place--)
            ranks[place] = ranks[place - 1];
        ranks[place] = at;
    }
}

static void unlock_extents(const struct commit *commit, const u64 ranks[], u64 count) {
    for (u64 at = 0; at < count; at++)
        smbox_unlock(commit->order->region[ranks[at]], commit->stripe);
}

static enum result lock_extents(struct commit *commit, const u64 ranks[], struct order *order) {
    for (u64 at = 0; at < order->extents; at++) {
        struct region *region = order->region[ranks[at]];
        enum result result = smbox_lock(commit->writer->holder, region, commit->stripe);
        if (result != DONE) {
            unlock_extents(commit, ranks, at);
            order->blocked = region;
            order->stripe = commit->stripe;
            return result;
        }
    }
    return DONE;
}

/* ---- output ------------------------------------------------------------------------------------- */

/* Convert a number of bytes of the range into that of the output for them. */
static u64 output_nbytes(const struct order *order, u64 nbytes) {
    u64 dtype = order->region[0]->dtype;
    return scaled(nbytes, dtype, order->output == OUTPUT_MOVED ? order->operand : dtype);
}

/* Let the output go to the channel's ring, if the channel must answer with it. Old bytes that are
 * output undo the commit, too; else the old bytes go to ``undo``. */
static void choose_targets(struct commit *commit, u8 *undo) {
    const struct order *order = commit->order;
    const struct channel *channel = order->channel;
    commit->old = undo;
    commit->answer = NULL;
    commit->output_to = order->output_to;
    if (commit->output_to)
        commit->output_to += output_nbytes(order, commit->first - order->first);
    if (!channel || !channel->ring || order->output == OUTPUT_NOTHING)
        return;
    u64 entry = (commit->number - 1) % RING_ENTRIES;
    commit->output_to = channel->ring_base + channel->ring_offset + entry * channel->entry_nbytes;
    if (order->output == OUTPUT_OLD)
        commit->old = commit->output_to;
    commit->answer = (struct ring_entry *)channel->ring_base + entry;
    store_relaxed(&commit->answer->number, 0);
    store_relaxed(&commit->answer->nbytes, output_nbytes(order, commit->limit - commit->first));
}

/* ---- journal ------------------------------------------------------------------------------------ */

/* Record in the slot which channel the commit belongs to, and where its old bytes lie. */
static void arm_channel(struct commit *commit) {
    struct slot *slot = commit->writer->slot;
    const struct channel *channel = commit->order->channel;
    store_relaxed(&slot->channel, channel ? channel->index + 1 : 0);
    store_relaxed(&slot->serial, channel ? channel->row->serial : 0);
    store_relaxed(&slot->number, channel ? commit->number : 0);
    int is_in_ring = commit->old != undo_area(slot, commit->order->region[0], 0);
    store_relaxed(&slot->ring, is_in_ring ? channel->ring : 0);
    if (is_in_ring)
        store_relaxed(&slot->ring_offset, (u64)(commit->old - channel->ring_base));
}

static void arm(struct commit *commit) {
    struct slot *slot = commit->writer->slot;
    const struct order *order = commit->order;
    store_relaxed(&slot->stripe, commit->stripe);
    store_relaxed(&slot->first, commit->first);
    store_relaxed(&slot->progress, 0);
    store_relaxed(&slot->extents, order->extents);
    for (u64 at = 0; at < order->extents; at++)
        store_relaxed(&slot->region[at], order->region[at]->address);
    choose_targets(commit, undo_area(slot, order->region[0], 0));
    arm_channel(commit);
    /* A recoverer that finds a stripe open with this slot must find all of the above. */
    store_release(&slot->state, load_relaxed(&slot->state) + SLOT_ARMED);
    for (u64 at = 0; at < order->extents; at++) {
        struct stripe *row = &order->region[at]->table[commit->stripe];
        store_relaxed(&row->writer, slot->id);
        /* Release: a process that finds the stripe open finds its writer and the armed slot. */
        store_release(&row->sequence, load_relaxed(&row->sequence) | SEQUENCE_OPEN);
    }
}

static void close_commit(struct commit *commit) {
    struct slot *slot = commit->writer->slot;
    const struct order *order = commit->order;
    const struct channel *channel = order->channel;
    if (commit->answer)
        store_relaxed(&commit->answer->number, commit->number);
    /* The commit: a recoverer that sees it must see all new bytes. */
    store_release(&slot->state,
                  load_relaxed(&slot->state) + SLOT_COMMITS + SLOT_COMMITTED - SLOT_ARMED);
    if (channel)
        store_release(&channel->row->applied, commit->number);
    for (u64 at = 0; at < order->extents; at++) {
        struct stripe *row = &order->region[at]->table[commit->stripe];
        /* A reader that sees the stripe closed sees all new bytes. */
        store_release(&row->sequence,
                      load_relaxed(&row->sequence) + SEQUENCE_COMMIT - SEQUENCE_OPEN);
    }
    /* The slot is free only after all its stripes are closed. */
    store_release(&slot->state, load_relaxed(&slot->state) - SLOT_COMMITTED);
}

/* ---- an optimizer's parameters ----------------------------------------------------------------- */

/* ADAM's depend on the number of the step: the commits of the last state's stripe, this one
 * included (Kingma and Ba, arXiv:1412.6980, in torch.optim's order of operations). */
static void prepare_parameters(struct commit *commit) {
    const struct order *order = commit->order;
    if (!order->parameters)
        return;
    memcpy(commit->parameters, order->parameters, 4 * sizeof(double));
    if (order->kernel != ADAM)
        return;
    const struct region *last = order->region[order->extents - 1];
    double step = (double)(load_relaxed(&last->table[commit->stripe].sequence) >> COMMITS_SHIFT) + 1;
    double lr = order->parameters[0], beta1 = order->parameters[1], beta2 = order->parameters[2];
    double prepared[5] = {beta1, beta2, order->parameters[3], lr / (1 - pow(beta1, step)),
                          sqrt(1 - pow(beta2, step))};
    memcpy(commit->parameters, prepared, sizeof prepared);
}

/* ---- the kernel, block by block -------------------------------------------------------------- */

/* Run the kernel on each row: the operand is count, row_nbytes, places, values. */
static void scatter(const struct commit *commit, u8 *begin, struct operation row, u64 dtype) {
    const u8 *places = row.source + 16;
    u64 count, place;
    memcpy(&count, row.source, 8);
    memcpy(&row.nbytes, row.source + 8, 8);
    row.count = row.nbytes >> shift_of(dtype);
    row.source = places + 8 * count;
    for (u64 i = 0; i < count; i++, row.source += row.nbytes) {
        memcpy(&place, places + 8 * i, 8);
        u8 *const at[EXTENTS_MAX] = {begin + place * row.nbytes};
        commit->kernel(at, &row);
    }
}

/* Run the kernel on bytes [from, from + nbytes) of the range. */
static void run_kernel(const struct commit *commit, u64 from, u64 nbytes) {
    const struct order *order = commit->order;
    u64 dtype = order->region[0]->dtype;
    u8 *at[EXTENTS_MAX] = {0};
    for (u64 extent = 0; extent < order->extents; extent++)
        at[extent] = order->region[extent]->data + from;
    struct operation operation = {.count = nbytes >> shift_of(dtype), .nbytes = nbytes};
    operation.parameters = commit->parameters;
    operation.scale.whole = order->scale.whole;
    operation.source = order->source;
    if (!is_whole(order->kernel) && order->kernel != SCALE)
        operation.source += scaled(from - order->first, dtype, order->operand);
    if (commit->output_to)
        operation.output_to = commit->output_to + output_nbytes(order, from - commit->first);
    /* Whoever sees a store of the kernel must see what precedes it: a reader the open stripe, a
     * recoverer the block's progress, and of a region without locks, a reader this thread's earlier
     * commits. */
    atomic_thread_fence(memory_order_release);
    if (order->kernel == SCATTER_PUT || order->kernel == SCATTER_SUM)
        scatter(commit, at[0], operation, dtype);
    else
        commit->kernel(at, &operation);
}

/* Save the old bytes of a block, so that a recoverer can undo what the kernel does to it. */
static void save(const struct commit *commit, u64 from, u64 nbytes) {
    const struct order *order = commit->order;
    struct slot *slot = commit->writer->slot;
    u64 saved = from - commit->first;
    copy(commit->old + saved, order->region[0]->data + from, nbytes);
    for (u64 at = 1; at < order->extents; at++)
        copy(undo_area(slot, order->region[at], at) + saved, order->region[at]->data + from, nbytes);
    /* A recoverer that sees progress must find these old bytes. */
    store_release(&slot->progress, saved + nbytes);
}

/* Blocks are small: the saved bytes are still in the L1 cache when the kernel reads them. A "whole"
 * kernel (smbox/memory/kernels.py) gets its entire range in one call. */
static void change_blocks(const struct commit *commit, int is_saved) {
    const struct order *order = commit->order;
    u64 block = is_whole(order->kernel) ? commit->limit - commit->first
                                        : commit->writer->block_nbytes;
    for (u64 from = commit->first; from < commit->limit; from += block) {
        u64 nbytes = smaller(block, commit->limit - from);
        if (is_saved)
            save(commit, from, nbytes);
        run_kernel(commit, from, nbytes);
        if (order->output == OUTPUT_NEW)
            copy(commit->output_to + (from - commit->first), order->region[0]->data + from, nbytes);
    }
}

static enum result commit_locked(struct commit *commit, struct order *order) {
    u64 ranks[EXTENTS_MAX] = {0};
    sort_extents(order, ranks);
    enum result result = lock_extents(commit, ranks, order);
    if (result != DONE)
        return result;
    prepare_parameters(commit);
    arm(commit);
    change_blocks(commit, 1);
    if (order->output == OUTPUT_OLD && commit->output_to && commit->output_to != commit->old)
        copy(commit->output_to, commit->old, commit->limit - commit->first);
    close_commit(commit);
    unlock_extents(commit, ranks, order->extents);
    return DONE;
}

/* Hogwild (Niu et al. 2011): no lock and no journal. Aligned elements are not torn, and the commits
 * are counted. */
static enum result commit_unlocked(struct commit *commit, struct order *order) {
    struct region *region = order->region[0];
    const struct channel *channel = order->channel;
    if (is_freed(region))
        return FREED;
    choose_targets(commit, NULL);
    if (order->output == OUTPUT_OLD && commit->output_to)
        copy(commit->output_to, region->data + commit->first, commit->limit - commit->first);
    change_blocks(commit, 0);
    atomic_fetch_add_explicit(&region->table[commit->stripe].sequence, SEQUENCE_COMMIT,
                              memory_order_release);
    if (commit->answer)
        store_release(&commit->answer->number, commit->number);
    /* After the stores: if the node is killed in between, they are repeated, as documented. */
    if (channel)
        store_release(&channel->row->applied, commit->number);
    return is_freed(region) ? FREED : DONE;
}

/* Run an order to its end, to the first obstacle, or until ``*left`` bytes are changed. */
static enum result run_order(struct writer *writer, struct order *order, u64 *left) {
    order->blocked = order->region[0];
    if (!is_good(order))
        return BAD_ORDER;
    struct region *region = order->region[0];
    struct commit commit = {.writer = writer, .order = order};
    commit.number = order->number + order->done / region->stripe_nbytes -
                    order->first / region->stripe_nbytes;
    commit.kernel = smbox_kernel(order->kernel, region->dtype, order->operand, order->output);
    if (!commit.kernel)
        return BAD_ORDER;
    while (order->done < order->limit && *left) {
        commit.first = order->done;
        commit.stripe = commit.first / region->stripe_nbytes;
        commit.limit = smaller(order->limit, (commit.stripe + 1) * region->stripe_nbytes);
        enum result result = region->consistency == WITHOUT_LOCKS
                                 ? commit_unlocked(&commit, order)
                                 : commit_locked(&commit, order);
        if (result != DONE)
            return result;
        order->done = commit.limit;
        *left -= smaller(*left, commit.limit - commit.first);
        commit.number++;
    }
    return DONE;
}

u64 smbox_commit(struct writer *writer, struct order *orders, u32 count) {
    u64 left = CALL_NBYTES;
    u32 at = 0;
    for (; at < count; at++) {
        orders[at].result = run_order(writer, &orders[at], &left);
        if (orders[at].result != DONE || orders[at].done < orders[at].limit)
            break;
    }
    /* Sequential consistency: all see these stores before the caller loads another region. */
    atomic_thread_fence(memory_order_seq_cst);
    return at;
}

/* ---- recovery ---------------------------------------------------------------------------------- */

u64 smbox_recover(struct region *region, u64 stripe, struct slot *slot, const u8 *ring,
                  const u64 *holder) {
    struct stripe *row = &region->table[stripe];
    if (!*holder || load_relaxed(&row->holder) != *holder)
        return NOT_OWN; /* a forked child in a call of its parent, which may have unlocked it since */
    u64 sequence = load_acquire(&row->sequence);
    if (!(sequence & SEQUENCE_OPEN))
        return DONE;
    u64 state = load_acquire(&slot->state) & SLOT_STATE, extents = load_relaxed(&slot->extents);
    u64 at = 0;
    while (at < extents && at < EXTENTS_MAX && load_relaxed(&slot->region[at]) != region->address)
        at++;
    if (at == extents || at == EXTENTS_MAX || state == SLOT_FREE || slot->id != load_relaxed(&row->writer) ||
        load_relaxed(&slot->stripe) != stripe)
        return BAD_ORDER;
    if (state == SLOT_COMMITTED) {
        store_release(&row->sequence, sequence + SEQUENCE_COMMIT - SEQUENCE_OPEN);
        return DONE;
    }
    u64 first = load_relaxed(&slot->first), progress = load_acquire(&slot->progress);
    if (first / region->stripe_nbytes != stripe || first > region->nbytes ||
        progress > region->nbytes - first || first % region->stripe_nbytes + progress > region->stripe_nbytes)
        return BAD_ORDER;
    const u8 *old = ring && at == 0 ? ring : undo_area(slot, region, at);
    /* A reader that sees one of these stores must see the stripe open: it may have begun before
     * earlier commits, whose bytes these are. */
    atomic_thread_fence(memory_order_release);
    copy(region->data + first, old, progress);
    u64 undone = (sequence + SEQUENCE_UNDONE) & SEQUENCE_UNDONE_MASK;
    /* Readers that copied between the stores above find a changed sequence word. */
    store_release(&row->sequence, (sequence & ~(u64)0xffff) | undone);
    return DONE;
}

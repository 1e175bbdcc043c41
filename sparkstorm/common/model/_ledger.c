/* The acker's table (data_plane/acking/table_ledger.py): search, one batch of messages, layout, what changed. Twin: the dict of data_plane/acking/ledger.py. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if PY_BIG_ENDIAN
#error "the journal's columns are little-endian: plain Python writes them on this machine"
#endif

enum { EMPTY = 0, BURIED = -1, UNKNOWN_TASK = -1 };
enum { LIVE, USED, NEWEST, CHANGED, REMOVED, CANDIDATES, ACKED, FAILED, COUNTERS };
enum { BUCKET_BITS = 3, FAILED_BIT = 4, CHANGED_BIT = 8, STORED_BIT = 16 };
#define MOST_TASK (((int64_t)1 << 31) - 1)
#define MOST_BUFFERS 16
#define FEW 64 /* messages of a batch that comes in lists */

typedef struct {
    int64_t *ids, *values, *counters, *changed, *removed;
    int32_t *tasks;
    uint8_t *flags;
    int64_t places, changed_size, removed_size;
} Table;

static void
release(Py_buffer *buffers, int count)
{
    while (count-- > 0)
        PyBuffer_Release(&buffers[count]);
}

/* Columns of contiguous numbers, of which the bits of `writable` name those that are written to. */
static int
take_buffers(PyObject *const *args, Py_buffer *buffers, int count, unsigned writable)
{
    for (int n = 0; n < count; n++)
        if (PyObject_GetBuffer(args[n], &buffers[n], writable >> n & 1 ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0) {
            release(buffers, n);
            return -1;
        }
    return 0;
}

/* Whether a column has numbers of this size, as many as it should; -1: any number of them. */
static inline int
has_numbers(const Py_buffer *column, size_t size, int64_t count)
{
    return column->len % (Py_ssize_t)size == 0 && (uintptr_t)column->buf % size == 0 && (count < 0 || column->len / (Py_ssize_t)size == count);
}

static int
are_places(const Py_buffer *b)
{
    int64_t places = b[0].len / 8;
    if (places > 0 && has_numbers(&b[0], 8, -1) && has_numbers(&b[1], 8, places) && has_numbers(&b[2], 4, places) && b[3].len == places)
        return 1;
    PyErr_SetString(PyExc_ValueError, "the columns of a table have no places, or different numbers of them");
    return 0;
}

/* The table of seven columns; 0 with ValueError when they, the counters or the limit do not fit together. */
static int
take_table(Table *t, const Py_buffer *b, int64_t limit)
{
    if (!are_places(b))
        return 0;
    *t = (Table){.ids = b[0].buf, .values = b[1].buf, .tasks = b[2].buf, .flags = b[3].buf, .counters = b[4].buf, .changed = b[5].buf,
                 .removed = b[6].buf, .places = b[0].len / 8, .changed_size = b[5].len / 8, .removed_size = b[6].len / 8};
    int64_t *c = t->counters;
    if (!has_numbers(&b[5], 8, -1) || !has_numbers(&b[6], 8, -1))
        PyErr_SetString(PyExc_ValueError, "the columns of a table are no columns of numbers");
    else if (!has_numbers(&b[4], 8, COUNTERS) || c[LIVE] < 0 || c[USED] < 0 || c[USED] > t->places || c[LIVE] > c[USED] || c[NEWEST] < 0 ||
             c[NEWEST] >= BUCKET_BITS || c[CHANGED] < 0 || c[CHANGED] > INT64_MAX / 2 || c[REMOVED] < 0 || c[REMOVED] > t->removed_size)
        PyErr_SetString(PyExc_ValueError, "the counters of a table are none that it can have");
    else if (limit >= t->places)
        PyErr_SetString(PyExc_ValueError, "a limit that leaves no place of a table empty");
    else
        return 1;
    return 0;
}

static int
refuse_full(void)
{
    PyErr_SetString(PyExc_ValueError, "a table has no empty place, though its counters say so");
    return -1;
}

static inline int64_t
home_of(int64_t root, int64_t places)
{
    uint64_t mixed = ((uint64_t)root ^ ((uint64_t)root >> 32)) & 0xFFFFFFFF;
    return (int64_t)((((mixed * 0x9E3779B1) & 0xFFFFFFFF) * (uint64_t)places) >> 32);
}

/* The root's place, the complement of the empty one where it would go, or FULL when a table that has none empty has no such root. */
#define FULL INT64_MIN
static inline int64_t
place_of(const int64_t *ids, int64_t places, int64_t root)
{
    int64_t at = home_of(root, places);
    for (int rounds = 0; ids[at] != root;) {
        if (ids[at] == EMPTY)
            return ~at;
        if (++at == places) {
            if (rounds++)
                return FULL;
            at = 0;
        }
    }
    return at;
}

static int
is_within(const Py_buffer *column, int64_t least, int64_t most)
{
    const int64_t *numbers = column->buf;
    for (Py_ssize_t n = 0; n < column->len / 8; n++)
        if (numbers[n] < least || numbers[n] > most)
            return 0;
    return 1;
}

/* Rows done; -1 with an error. */
static int64_t
apply_rows(Table *t, const Py_buffer *b, int64_t *candidates, int64_t *hints, int64_t start, int64_t limit)
{
    const int64_t *init_roots = b[0].buf, *init_values = b[1].buf, *init_tasks = b[2].buf;
    const int64_t *ack_roots = b[3].buf, *ack_values = b[4].buf, *fail_roots = b[5].buf;
    int64_t inits = b[0].len / 8, acks = inits + b[3].len / 8, rows = acks + b[5].len / 8;
    int64_t used = t->counters[USED], before = used, logged = t->counters[CHANGED], row = start;
    int64_t ending = start ? t->counters[CANDIDATES] : 0;
    uint8_t newest = (uint8_t)t->counters[NEWEST];
    for (; row < rows && used < limit; row++) {
        int64_t root = row < inits ? init_roots[row] : row < acks ? ack_roots[row - inits] : fail_roots[row - acks];
        int64_t at = place_of(t->ids, t->places, root);
        if (at < 0) {
            if (at == FULL)
                return refuse_full();
            at = ~at;
            t->ids[at] = root;
            t->values[at] = 0;
            t->tasks[at] = UNKNOWN_TASK;
            t->flags[at] = newest;
            used++;
        }
        if (!(t->flags[at] & CHANGED_BIT)) {
            t->flags[at] |= CHANGED_BIT;
            if (logged < t->changed_size)
                t->changed[logged] = root;
            logged++;
        }
        if (row < inits) {
            t->values[at] ^= init_values[row];
            t->tasks[at] = (int32_t)init_tasks[row];
        }
        else if (row < acks)
            t->values[at] ^= ack_values[row - inits];
        else
            t->flags[at] = (uint8_t)((t->flags[at] & ~BUCKET_BITS) | FAILED_BIT | newest);
        if ((t->values[at] == 0 || t->flags[at] & FAILED_BIT) && t->tasks[at] != UNKNOWN_TASK) {
            hints[ending] = at;
            candidates[ending++] = root;
        }
    }
    t->counters[USED] = used;
    t->counters[CHANGED] = logged;
    t->counters[CANDIDATES] = ending;
    t->counters[LIVE] += used - before;
    return row;
}

/* Free a place: later roots of its run move back, so that no search stops short of them; -1 with an error. */
static int
take_out(Table *t, int64_t hole)
{
    int rounds = 0;
    for (int64_t at = hole, gap = 0;;) {
        gap++;
        if (++at == t->places) {
            if (rounds++)
                return refuse_full();
            at = 0;
        }
        int64_t root = t->ids[at];
        if (root == EMPTY)
            break;
        int64_t distance = at - home_of(root, t->places);
        if (root != BURIED && (distance >= 0 ? distance : distance + t->places) >= gap) {
            t->ids[hole] = root;
            t->values[hole] = t->values[at];
            t->tasks[hole] = t->tasks[at];
            t->flags[hole] = t->flags[at];
            hole = at;
            gap = 0;
        }
    }
    t->ids[hole] = EMPTY;
    return 0;
}

/* -1 with an error. */
static int
settle_rows(Table *t, const int64_t *candidates, int64_t *out_roots, int64_t *out_tasks, int64_t size)
{
    int64_t acked = 0, failed = 0;
    for (int64_t row = 0; row < t->counters[CANDIDATES]; row++) {
        int64_t root = candidates[row], hole = out_roots[row];
        if (hole < 0 || hole >= t->places || t->ids[hole] != root)
            hole = place_of(t->ids, t->places, root);
        if (hole < 0 || (t->values[hole] != 0 && !(t->flags[hole] & FAILED_BIT)))
            continue;
        int64_t out = t->values[hole] == 0 ? acked++ : size - 1 - failed++;
        out_roots[out] = root;
        out_tasks[out] = t->tasks[hole];
        if (t->flags[hole] & STORED_BIT) {
            if (t->counters[REMOVED] >= t->removed_size) {
                PyErr_SetString(PyExc_ValueError, "no room for a removed root");
                return -1;
            }
            t->removed[t->counters[REMOVED]++] = root;
        }
        if (take_out(t, hole) < 0)
            return -1;
    }
    t->counters[ACKED] = acked;
    t->counters[FAILED] = failed;
    t->counters[LIVE] -= acked + failed;
    t->counters[USED] -= acked + failed;
    return 0;
}

static int
is_legal(const Py_buffer *b)
{
    return is_within(&b[0], 1, INT64_MAX) && is_within(&b[1], 0, INT64_MAX) && is_within(&b[2], 0, MOST_TASK) &&
           is_within(&b[3], 1, INT64_MAX) && is_within(&b[4], 0, INT64_MAX) && is_within(&b[5], 1, INT64_MAX);
}

/* Rows done from `start` on, fewer than all at the table's limit: grow it and call again from there; -1 and nothing applied when a number
   is out of range. Acked roots fill the results from the front, failed ones from the back. */
static PyObject *
apply_batch(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer b[MOST_BUFFERS];
    int64_t done = -1;
    if (count != 18) {
        PyErr_SetString(PyExc_TypeError, "apply_batch takes 16 columns, start and limit");
        return NULL;
    }
    int64_t start = PyLong_AsLongLong(args[16]), limit = PyLong_AsLongLong(args[17]);
    if (PyErr_Occurred() || take_buffers(args, b, 16, 0xE07F) < 0)
        return NULL;
    Table t;
    Py_ssize_t size = b[7].len + b[10].len + b[12].len;
    int are_numbers = 1;
    for (int n = 7; n < 16; n++)
        are_numbers &= has_numbers(&b[n], 8, -1);
    if (!take_table(&t, b, limit))
        ;
    else if (start < 0 || start > size / 8 || !are_numbers || b[8].len != b[7].len || b[9].len != b[7].len || b[11].len != b[10].len ||
             b[13].len < size || b[14].len != b[13].len || b[15].len != b[13].len)
        PyErr_SetString(PyExc_ValueError, "a start outside of the batch, or columns of different lengths");
    else if (start && (t.counters[CANDIDATES] < 0 || t.counters[CANDIDATES] > start))
        PyErr_SetString(PyExc_ValueError, "a start that does not go with the counters");
    else if (start || is_legal(&b[7])) {
        done = apply_rows(&t, &b[7], b[13].buf, b[14].buf, start, limit);
        if (done == b[13].len / 8)
            settle_rows(&t, b[13].buf, b[14].buf, b[15].buf, b[13].len / 8);
    }
    release(b, 16);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(done);
}

/* Copy lists and tuples of numbers into one array, column after column; 0 when one is something else, or not of few numbers. */
static int
take_lists(PyObject *const *args, Py_buffer *columns, int count, int64_t *numbers)
{
    Py_ssize_t taken = 0;
    for (int n = 0; n < count; n++) {
        if ((!PyList_CheckExact(args[n]) && !PyTuple_CheckExact(args[n])) || PySequence_Fast_GET_SIZE(args[n]) > FEW - taken)
            return 0;
        columns[n].buf = numbers + taken;
        columns[n].len = 8 * PySequence_Fast_GET_SIZE(args[n]);
        for (Py_ssize_t at = 0; at < PySequence_Fast_GET_SIZE(args[n]); at++) {
            PyObject *number = PySequence_Fast_GET_ITEM(args[n], at);
            int overflow = 1;
            if (PyLong_CheckExact(number))
                numbers[taken++] = PyLong_AsLongLongAndOverflow(number, &overflow);
            if (overflow)
                return 0;
        }
    }
    return 1;
}

static PyObject *
list_of(const int64_t *numbers, int64_t count)
{
    PyObject *list = PyList_New(count);
    for (int64_t n = 0; list != NULL && n < count; n++) {
        PyObject *number = PyLong_FromLongLong(numbers[n]);
        if (number == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, n, number);
    }
    return list;
}

/* apply_batch for few messages in lists, in a table with room for all; None where it is not for this one. */
static PyObject *
apply_few(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer b[7], columns[6];
    int64_t numbers[FEW], candidates[FEW], roots[FEW], tasks[FEW];
    if (count != 14) {
        PyErr_SetString(PyExc_TypeError, "apply_few takes 13 columns and a limit");
        return NULL;
    }
    int64_t limit = PyLong_AsLongLong(args[13]);
    if (limit == -1 && PyErr_Occurred())
        return NULL;
    if (!take_lists(args + 7, columns, 6, numbers) || !is_legal(columns) || columns[1].len != columns[0].len ||
        columns[2].len != columns[0].len || columns[4].len != columns[3].len)
        Py_RETURN_NONE;
    int64_t rows = (columns[0].len + columns[3].len + columns[5].len) / 8;
    if (take_buffers(args, b, 7, 0x7F) < 0)
        return NULL;
    Table t;
    if (!take_table(&t, b, limit)) {
        release(b, 7);
        return NULL;
    }
    int has_room = t.counters[USED] + rows < limit && t.counters[REMOVED] + rows <= t.removed_size;
    if (has_room && (apply_rows(&t, columns, candidates, roots, 0, limit) < 0 || settle_rows(&t, candidates, roots, tasks, rows) < 0)) {
        release(b, 7);
        return NULL;
    }
    int64_t acked = has_room ? t.counters[ACKED] : 0, failed = has_room ? t.counters[FAILED] : 0;
    release(b, 7);
    if (!has_room)
        Py_RETURN_NONE;
    if (!acked && !failed)
        Py_RETURN_FALSE;
    return Py_BuildValue("NNNN", list_of(roots, acked), list_of(tasks, acked), list_of(roots + rows - failed, failed),
                         list_of(tasks + rows - failed, failed));
}

/* Places of the roots that a journal's delta has to put, as many as returned, and their mark of a change cleared; -1 with an error. */
static int64_t
take_changed(Table *t, int64_t *places)
{
    int64_t found = 0;
    if (t->counters[CHANGED] > t->changed_size) { /* the log overflowed: every flag is looked at, eight at once */
        for (int64_t from = 0; from < t->places; from += 8) {
            int64_t end = from + 8 < t->places ? from + 8 : t->places;
            uint64_t eight = 0;
            memcpy(&eight, t->flags + from, (size_t)(end - from));
            for (eight &= CHANGED_BIT * 0x0101010101010101u; eight != 0; eight &= eight - 1) {
                int64_t at = from + __builtin_ctzll(eight) / 8;
                if (t->ids[at] > 0)
                    places[found++] = at;
            }
        }
    }
    else
        for (int64_t row = 0; row < t->counters[CHANGED]; row++) {
            int64_t at = place_of(t->ids, t->places, t->changed[row]);
            if (at == FULL)
                return refuse_full();
            if (at >= 0 && t->ids[at] > 0 && t->flags[at] & CHANGED_BIT) { /* once: a root that came again is in the log twice */
                t->flags[at] &= (uint8_t)~CHANGED_BIT;
                places[found++] = at;
            }
        }
    return found;
}

/* A delta as data_plane/acking/journal.py has it: two counts, roots, values, tasks and flags of what is put, then the removed roots. */
static void
write_changes(Table *t, const int64_t *places, int64_t found, char *out)
{
    uint32_t counts[2] = {(uint32_t)found, (uint32_t)t->counters[REMOVED]};
    memcpy(out, counts, 8);
    out += 8;
    char *values = out + 8 * found, *tasks = values + 8 * found, *flags = tasks + 4 * found;
    for (int64_t row = 0; row < found; row++) {
        int64_t at = places[row];
        memcpy(out + 8 * row, &t->ids[at], 8);
        memcpy(values + 8 * row, &t->values[at], 8);
        memcpy(tasks + 4 * row, &t->tasks[at], 4);
        flags[row] = t->flags[at] & FAILED_BIT ? 1 : 0;
        t->flags[at] = (uint8_t)((t->flags[at] & ~CHANGED_BIT) | STORED_BIT);
    }
    memcpy(flags + found, t->removed, 8 * (size_t)t->counters[REMOVED]);
    t->counters[CHANGED] = t->counters[REMOVED] = 0;
}

/* The bytes given (a delta's head) and the delta; the logs of changed and removed roots are empty after. */
static PyObject *
take_delta(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer b[7];
    if (count != 8 || !PyBytes_Check(args[7])) {
        PyErr_SetString(PyExc_TypeError, "take_delta takes the 7 columns of a table and bytes");
        return NULL;
    }
    if (take_buffers(args, b, 7, 0x7F) < 0)
        return NULL;
    Table t;
    PyObject *body = NULL;
    int64_t *places = NULL, found = -1;
    if (take_table(&t, b, 0)) {
        int64_t most = t.counters[CHANGED] > t.changed_size ? t.places : t.counters[CHANGED];
        places = PyMem_Malloc(8 * (size_t)(most + 1));
        found = places == NULL ? -1 : take_changed(&t, places);
        if (places == NULL)
            PyErr_NoMemory();
    }
    if (found >= 0) {
        Py_ssize_t head = PyBytes_GET_SIZE(args[7]);
        body = PyBytes_FromStringAndSize(NULL, head + 8 + found * 21 + 8 * t.counters[REMOVED]);
        if (body != NULL) {
            memcpy(PyBytes_AS_STRING(body), PyBytes_AS_STRING(args[7]), (size_t)head);
            write_changes(&t, places, found, PyBytes_AS_STRING(body) + head);
        }
        else
            for (int64_t row = 0; row < found; row++)
                t.flags[places[row]] |= CHANGED_BIT; /* nothing was taken: the next delta has them */
    }
    PyMem_Free(places);
    release(b, 7);
    return body;
}

/* The place of each root among the ids of a table: -1 where there is none, or, if `inserts`, one that was free. */
static PyObject *
places_of(PyObject *const *args, Py_ssize_t count, int inserts)
{
    Py_buffer b[3];
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "a search takes ids, roots and places");
        return NULL;
    }
    if (take_buffers(args, b, 3, inserts ? 5 : 4) < 0)
        return NULL;
    int64_t *ids = b[0].buf, *places = b[2].buf, size = b[0].len / 8, rows = b[1].len / 8;
    const int64_t *roots = b[1].buf;
    if (size == 0 || !has_numbers(&b[0], 8, -1) || !has_numbers(&b[1], 8, -1) || !has_numbers(&b[2], 8, rows) || !is_within(&b[1], 1, INT64_MAX))
        PyErr_SetString(PyExc_ValueError, "the columns of a table have no places, or its roots are no column of ids");
    else
        for (int64_t row = 0; row < rows; row++) {
            int64_t at = place_of(ids, size, roots[row]);
            if (at == FULL) {
                refuse_full();
                break;
            }
            if (at < 0 && inserts)
                ids[at = ~at] = roots[row];
            places[row] = at < 0 ? -1 : at;
        }
    release(b, 3);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
find_roots(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    return places_of(args, count, 0);
}

static PyObject *
insert_roots(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    return places_of(args, count, 1);
}

PyMethodDef ledger_functions[] = {
    {"apply_batch", (PyCFunction)(void (*)(void))apply_batch, METH_FASTCALL, "See data_plane/acking/table_ledger.py."},
    {"apply_few", (PyCFunction)(void (*)(void))apply_few, METH_FASTCALL, "See data_plane/acking/table_ledger.py."},
    {"take_delta", (PyCFunction)(void (*)(void))take_delta, METH_FASTCALL, "See data_plane/acking/table_ledger.py."},
    {"find_roots", (PyCFunction)(void (*)(void))find_roots, METH_FASTCALL, "See data_plane/acking/table_ledger.py."},
    {"insert_roots", (PyCFunction)(void (*)(void))insert_roots, METH_FASTCALL, "See data_plane/acking/table_ledger.py."},
    {NULL, NULL, 0, NULL},
};

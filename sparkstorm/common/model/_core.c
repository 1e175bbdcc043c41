/* Compiled core: what a row costs on its way through a worker. Optional: common/model/compiled.py has the twins in Python.

   Each object here does the usual case and calls its twin ("plain") for every other one, so that checks and errors exist
   once. Attributes of slotted Python classes are read and written at the offsets that their descriptors give. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <structmember.h>

#define CORE_VERSION 28 /* VERSION of compiled.py */
#if PY_VERSION_HEX >= 0x030D0000 /* they have left the public headers */
#define _PyDict_GetItem_KnownHash(dict, key, hash) PyDict_GetItemWithError(dict, key)
#define _PyDict_SetItem_KnownHash(dict, key, value, hash) PyDict_SetItem(dict, key, value)
#endif
#define SLOT(object, offset) (*(PyObject **)((char *)(object) + (offset)))

static Py_ssize_t
slot_of(PyObject *type, const char *name)
{
    Py_ssize_t offset = -1;
    PyObject *descriptor = PyObject_GetAttrString(type, name);
    if (descriptor == NULL)
        return -1;
    if (Py_TYPE(descriptor) == &PyMemberDescr_Type && ((PyMemberDescrObject *)descriptor)->d_member->type == T_OBJECT_EX)
        offset = ((PyMemberDescrObject *)descriptor)->d_member->offset;
    else
        PyErr_Format(PyExc_TypeError, "'%s' is no slot", name);
    Py_DECREF(descriptor);
    return offset;
}

/* Where a class of tuples has its fields; -1 with an error. */
typedef struct {
    Py_ssize_t values, roots, source;
} Fields;

static int
take_fields(PyObject *type, Fields *fields)
{
    return (fields->values = slot_of(type, "values")) < 0 || (fields->roots = slot_of(type, "roots")) < 0 ||
                   (fields->source = slot_of(type, "source")) < 0
               ? -1
               : 0;
}

static inline void
set_slot(PyObject *object, Py_ssize_t offset, PyObject *value)
{
    PyObject *former = SLOT(object, offset);
    Py_INCREF(value);
    SLOT(object, offset) = value;
    Py_XDECREF(former);
}

static inline void
clear_slot(PyObject *object, Py_ssize_t offset)
{
    PyObject *former = SLOT(object, offset);
    SLOT(object, offset) = NULL;
    Py_XDECREF(former);
}

/* Drop a list's items from a place on and keep its memory, which PyList_SetSlice gives back. */
static inline void
cut_list(PyObject *list, Py_ssize_t at)
{
    while (PyList_GET_SIZE(list) > at) {
        Py_ssize_t last = PyList_GET_SIZE(list) - 1;
        PyObject *item = PyList_GET_ITEM(list, last);
        Py_SET_SIZE(list, last);
        Py_DECREF(item);
    }
}

/* Call user code's `execute` with a tuple and a collector. The call of a bound method looks at its result twice, and moves arguments. */
static inline PyObject *
call_execute(PyObject *execute, PyObject *tuple, PyObject *collector)
{
    PyObject *call[4] = {NULL, NULL, tuple, collector};
    if (!Py_IS_TYPE(execute, &PyMethod_Type))
        return PyObject_Vectorcall(execute, call + 2, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    call[1] = PyMethod_GET_SELF(execute);
    return PyObject_Vectorcall(PyMethod_GET_FUNCTION(execute), call + 1, 3 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
}

/* ---- Pick: the picker of a grouping that chooses one task; twins in common/grouping/routes.py ---- */

enum { ONE, IN_TURN, BY_KEY, IN_RUNS, BY_HASH, BY_TWO };

extern int hash_of_value(PyObject *value, int32_t *hash); /* _hash.c */
extern int hash_of_positions(PyObject *values, const Py_ssize_t *positions, Py_ssize_t count, int32_t *hash);
extern int hashes_of_positions(PyObject *values, const Py_ssize_t *positions, Py_ssize_t count, int32_t *first, int32_t *second);
extern Py_ssize_t place_of_hash(int32_t hash, Py_ssize_t count);

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    int kind;
    Py_ssize_t position; /* BY_KEY: of the key among the values; IN_RUNS: of the rows that were chosen last */
    Py_ssize_t most;     /* IN_RUNS: rows that each list gets before one gets more; BY_HASH, BY_TWO: fields of the key */
    Py_ssize_t *numbers; /* IN_RUNS: how many of these each has still to get; BY_HASH, BY_TWO: positions of the key's fields, `most` of
                            them, and BY_TWO how many rows each list has got */
    PyObject *source;    /* ONE: the rows; IN_TURN: an endless iterator of rows; BY_KEY: rows by key; others: a tuple of rows */
    PyObject *choose;    /* BY_KEY: for keys that are not there; BY_HASH, BY_TWO: rows, or two places, of values whose hash is left to
                            the twin */
} Pick;

static PyTypeObject PickType;

/* Go on to the next list that has still to get rows. */
static void
next_run(Pick *self)
{
    Py_ssize_t count = PyTuple_GET_SIZE(self->source), step = 1;
    while (step < count && self->numbers[(self->position + step) % count] == 0)
        step++;
    if (step == count && self->numbers[self->position] == 0) { /* all have got theirs */
        for (Py_ssize_t at = 0; at < count; at++)
            self->numbers[at] = self->most;
        step = 1;
    }
    self->position = (self->position + step) % count;
}

/* Whether values have all fields of a key; else an error is set. */
static int
has_key(Pick *self, PyObject *values)
{
    if (!PyTuple_Check(values)) {
        PyErr_SetString(PyExc_TypeError, "a picker takes the values");
        return 0;
    }
    for (Py_ssize_t n = 0; n < self->most; n++)
        if (self->numbers[n] >= PyTuple_GET_SIZE(values)) {
            PyErr_SetString(PyExc_IndexError, "tuple index out of range");
            return 0;
        }
    return 1;
}

/* Of the two lists of a key, the one that has got fewer rows from here. */
static PyObject *
pick_less_used(Pick *self, PyObject *values)
{
    Py_ssize_t count = PyTuple_GET_SIZE(self->source), first, second, *used = self->numbers + self->most;
    int32_t one_hash, other_hash;
    if (hashes_of_positions(values, self->numbers, self->most, &one_hash, &other_hash)) {
        first = place_of_hash(one_hash, count);
        second = place_of_hash(other_hash, count);
        second = second != first ? second : (first + 1) % count;
    } else {
        PyObject *places = PyObject_CallOneArg(self->choose, values);
        int failed = places == NULL;
        if (!failed && (failed = !PyTuple_Check(places)))
            PyErr_SetString(PyExc_TypeError, "no two places of lists");
        failed = failed || !PyArg_ParseTuple(places, "nn", &first, &second);
        Py_XDECREF(places);
        if (failed)
            return NULL;
        if (first < 0 || first >= count || second < 0 || second >= count) {
            PyErr_SetString(PyExc_IndexError, "no place of a list");
            return NULL;
        }
    }
    first = used[first] <= used[second] ? first : second;
    used[first]++;
    return Py_NewRef(PyTuple_GET_ITEM(self->source, first));
}

static PyObject *
pick_rows(Pick *self, PyObject *values)
{
    PyObject *key, *found;
    int32_t hash;
    switch (self->kind) {
    case ONE:
        Py_INCREF(self->source);
        return self->source;
    case IN_TURN:
        found = Py_TYPE(self->source)->tp_iternext(self->source);
        if (found == NULL && !PyErr_Occurred())
            PyErr_SetNone(PyExc_StopIteration);
        return found;
    case IN_RUNS:
        if (PyList_GET_SIZE(PyTuple_GET_ITEM(self->source, self->position)) == 0 || self->numbers[self->position] == 0)
            next_run(self);
        self->numbers[self->position]--;
        return Py_NewRef(PyTuple_GET_ITEM(self->source, self->position));
    case BY_HASH:
        if (!has_key(self, values))
            return NULL;
        if (self->most == 1 ? hash_of_value(PyTuple_GET_ITEM(values, self->numbers[0]), &hash)
                            : hash_of_positions(values, self->numbers, self->most, &hash))
            return Py_NewRef(PyTuple_GET_ITEM(self->source, place_of_hash(hash, PyTuple_GET_SIZE(self->source))));
        return PyObject_CallOneArg(self->choose, values);
    case BY_TWO:
        return has_key(self, values) ? pick_less_used(self, values) : NULL;
    default:
        key = PyTuple_GetItem(values, self->position);
        if (key == NULL)
            return NULL;
        found = PyDict_GetItemWithError(self->source, key);
        if (found != NULL) {
            Py_INCREF(found);
            return found;
        }
        if (PyErr_Occurred()) {
            if (!PyErr_ExceptionMatches(PyExc_TypeError))
                return NULL;
            PyErr_Clear(); /* a list or mapping */
        }
        return PyObject_CallOneArg(self->choose, key);
    }
}

static PyObject *
pick_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    if (names != NULL || PyVectorcall_NARGS(nargsf) != 1) {
        PyErr_SetString(PyExc_TypeError, "a picker takes the values");
        return NULL;
    }
    return pick_rows((Pick *)self, args[0]);
}

static int
are_lists(PyObject *source)
{
    int found = PyTuple_CheckExact(source);
    for (Py_ssize_t at = 0; found && at < PyTuple_GET_SIZE(source); at++)
        found = PyList_CheckExact(PyTuple_GET_ITEM(source, at));
    return found;
}

/* Numbers of a kind of picker: what each list has still to get, or the positions of a key; NULL with an error. */
static Py_ssize_t *
pick_numbers(int kind, PyObject *source, PyObject *positions, Py_ssize_t most)
{
    Py_ssize_t count = kind == IN_RUNS ? PyTuple_GET_SIZE(source) : most;
    Py_ssize_t *numbers = PyMem_Calloc(count + (kind == BY_TWO ? PyTuple_GET_SIZE(source) : 0), sizeof(Py_ssize_t));
    if (numbers == NULL)
        PyErr_NoMemory();
    for (Py_ssize_t at = 0; numbers != NULL && at < count; at++) {
        numbers[at] = kind == IN_RUNS ? most : PyLong_AsSsize_t(PyTuple_GET_ITEM(positions, at));
        if (numbers[at] >= 0)
            continue;
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "no position of a field");
        PyMem_Free(numbers);
        numbers = NULL;
    }
    return numbers;
}

static PyObject *
pick_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    int kind;
    Py_ssize_t position, most = 0;
    PyObject *source, *choose, *positions = NULL;
    if (!PyArg_ParseTuple(args, "inOO|O!", &kind, &position, &source, &choose, &PyTuple_Type, &positions))
        return NULL;
    if (kind == IN_RUNS && (most = PyLong_AsSsize_t(choose)) == -1 && PyErr_Occurred())
        return NULL;
    if (kind == BY_HASH || kind == BY_TWO)
        most = positions == NULL ? 0 : PyTuple_GET_SIZE(positions);
    if (kind < ONE || kind > BY_TWO || (kind == IN_TURN && !PyIter_Check(source)) || (kind == BY_KEY && !PyDict_CheckExact(source)) ||
        (kind >= IN_RUNS && (!are_lists(source) || most < 1 || position < 0 || position >= PyTuple_GET_SIZE(source)))) {
        PyErr_SetString(PyExc_TypeError, "no source of rows of that kind");
        return NULL;
    }
    Py_ssize_t *numbers = NULL;
    if (kind >= IN_RUNS && (numbers = pick_numbers(kind, source, positions, most)) == NULL)
        return NULL;
    Pick *self = (Pick *)type->tp_alloc(type, 0);
    if (self == NULL) {
        PyMem_Free(numbers);
        return NULL;
    }
    self->call = pick_call;
    self->kind = kind;
    self->position = position;
    self->most = most;
    self->numbers = numbers;
    self->source = Py_NewRef(source);
    self->choose = Py_NewRef(choose);
    return (PyObject *)self;
}

static int
pick_traverse(Pick *self, visitproc visit, void *arg)
{
    Py_VISIT(self->source);
    Py_VISIT(self->choose);
    return 0;
}

static int
pick_clear(Pick *self)
{
    Py_CLEAR(self->source);
    Py_CLEAR(self->choose);
    return 0;
}

static void
pick_dealloc(Pick *self)
{
    PyObject_GC_UnTrack(self);
    pick_clear(self);
    PyMem_Free(self->numbers);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyTypeObject PickType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sparkstorm.common.model._core.Pick",
    .tp_doc = "Pick(kind, position, source, choose): picker of one list of rows.",
    .tp_basicsize = sizeof(Pick),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = pick_new,
    .tp_traverse = (traverseproc)pick_traverse,
    .tp_clear = (inquiry)pick_clear,
    .tp_dealloc = (destructor)pick_dealloc,
    .tp_vectorcall_offset = offsetof(Pick, call),
    .tp_call = PyVectorcall_Call,
};

/* ---- TimedPick: a picker that keeps the clock of the rows that it is asked about; twin: OutputClock.one ---- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *pick, *clock;
    PyObject *look_closer;                     /* (rows, time) -> rows: for the first row, and those that may be late */
    Py_ssize_t position;                       /* of the time among the values */
    Py_ssize_t newest, edge, oldest, distance; /* where the clock has them */
    long long last;
} TimedPick;

static PyTypeObject TimedPickType;

static PyObject *timed_rows(TimedPick *self, PyObject *values);

static inline PyObject *
picked_rows(PyObject *pick, PyObject *values)
{
    if (Py_TYPE(pick) == &PickType)
        return pick_rows((Pick *)pick, values);
    if (Py_TYPE(pick) == &TimedPickType)
        return timed_rows((TimedPick *)pick, values);
    return PyObject_CallOneArg(pick, values);
}

/* Whether an object is a whole number of 64 bits, and which. */
static inline int
read_number(PyObject *object, long long *number)
{
    int overflow = 1;
    if (object != NULL && PyLong_CheckExact(object))
        *number = PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow == 0;
}

static PyObject *
timed_rows(TimedPick *self, PyObject *values)
{
    PyObject *rows = picked_rows(self->pick, values), *found;
    PyObject *at = rows == NULL ? NULL : PyTuple_GetItem(values, self->position);
    if (at == NULL) {
        Py_XDECREF(rows);
        return NULL;
    }
    if (!PyLong_CheckExact(at))
        return rows;
    long long at_ms = 0, newest = 0, edge = 0, oldest = 0, distance = 0;
    if (read_number(at, &at_ms) && read_number(SLOT(self->clock, self->newest), &newest) &&
        read_number(SLOT(self->clock, self->edge), &edge) && read_number(SLOT(self->clock, self->oldest), &oldest) &&
        read_number(SLOT(self->clock, self->distance), &distance)) {
        if (at_ms <= newest && (at_ms < 0 || at_ms >= edge))
            return rows;
        if (at_ms > newest && at_ms >= oldest && at_ms <= self->last && distance >= 0 && distance <= self->last && at_ms >= 0) {
            PyObject *moved = PyLong_FromLongLong(at_ms - distance);
            if (moved == NULL) {
                Py_DECREF(rows);
                return NULL;
            }
            set_slot(self->clock, self->newest, at);
            set_slot(self->clock, self->edge, moved);
            Py_DECREF(moved);
            return rows;
        }
    }
    PyObject *call[3] = {NULL, rows, at};
    found = PyObject_Vectorcall(self->look_closer, call + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    Py_DECREF(rows);
    return found;
}

static PyObject *
timed_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    if (names != NULL || PyVectorcall_NARGS(nargsf) != 1 || !PyTuple_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "a picker takes the values");
        return NULL;
    }
    return timed_rows((TimedPick *)self, args[0]);
}

static PyObject *
timed_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    PyObject *pick, *clock, *look_closer;
    Py_ssize_t position, newest, edge, oldest, distance;
    long long last;
    if (!PyArg_ParseTuple(args, "OnOLO", &pick, &position, &clock, &last, &look_closer))
        return NULL;
    PyObject *kind = (PyObject *)Py_TYPE(clock);
    if ((newest = slot_of(kind, "newest_ms")) < 0 || (edge = slot_of(kind, "edge_ms")) < 0 ||
        (oldest = slot_of(kind, "oldest_ms")) < 0 || (distance = slot_of(kind, "_edge_behind_ms")) < 0)
        return NULL;
    TimedPick *self = (TimedPick *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->call = timed_call;
    self->pick = Py_NewRef(pick);
    self->clock = Py_NewRef(clock);
    self->look_closer = Py_NewRef(look_closer);
    self->position = position;
    self->newest = newest;
    self->edge = edge;
    self->oldest = oldest;
    self->distance = distance;
    self->last = last;
    return (PyObject *)self;
}

static int
timed_traverse(TimedPick *self, visitproc visit, void *arg)
{
    Py_VISIT(self->pick);
    Py_VISIT(self->clock);
    Py_VISIT(self->look_closer);
    return 0;
}

static int
timed_clear(TimedPick *self)
{
    Py_CLEAR(self->pick);
    Py_CLEAR(self->clock);
    Py_CLEAR(self->look_closer);
    return 0;
}

static void
timed_dealloc(TimedPick *self)
{
    PyObject_GC_UnTrack(self);
    timed_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyTypeObject TimedPickType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sparkstorm.common.model._core.TimedPick",
    .tp_doc = "TimedPick(pick, position of the time, clock, last time, look_closer): picker of one list of rows that keeps a clock.",
    .tp_basicsize = sizeof(TimedPick),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = timed_new,
    .tp_traverse = (traverseproc)timed_traverse,
    .tp_clear = (inquiry)timed_clear,
    .tp_dealloc = (destructor)timed_dealloc,
    .tp_vectorcall_offset = offsetof(TimedPick, call),
    .tp_call = PyVectorcall_Call,
};

/* ---- Emit: values for the subscribers of a stream, whose tasks pickers choose one by one; twin: Emitter.emit ---- */

#define MOST_PICKS 64 /* of emitter.py */

extern int is_plain(PyObject *value);                                     /* _values.c */
extern PyObject *normal_of(PyObject *value, PyObject *rest, long depth); /* _values.c */
extern int is_other_key(PyObject *key);                                    /* _extensions.c */

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *emitter;
    Py_ssize_t roots; /* where the emitter has them */
    PyObject *log, *spreads, *unread;
    PyObject *picks; /* a tuple; empty: the stream has no subscriber */
    PyObject *source;
    Py_ssize_t width; /* -1: every emission to the stream is left to the plain way */
    PyObject *stream;
    PyObject *plain;
    PyObject *rest;   /* decides about values that are neither scalars nor plain containers */
    PyObject *holds;  /* says whether the values are of the declared types; None: the stream declares none */
    PyObject *others; /* an Emit by name of other streams */
} Emit;

static PyTypeObject EmitType;

static inline int
is_scalar(PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    return type == &PyUnicode_Type || type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type ||
           type == &PyBytes_Type || value == Py_None;
}

static PyObject *
normal_values(PyObject *values, PyObject *rest)
{
    Py_ssize_t size = PyTuple_GET_SIZE(values);
    PyObject *normal = PyTuple_New(size);
    for (Py_ssize_t at = 0; normal != NULL && at < size; at++) {
        PyObject *found = normal_of(PyTuple_GET_ITEM(values, at), rest, 0);
        if (found == NULL)
            Py_CLEAR(normal);
        else
            PyTuple_SET_ITEM(normal, at, found);
    }
    return normal;
}

/* Append a row to each list and each list to the log, a row without subscribers to `unread`; all of it or, with an error, nothing. */
static int
put_rows(Emit *self, PyObject **chosen, Py_ssize_t count, PyObject *row)
{
    Py_ssize_t mark = PyList_GET_SIZE(self->log), put = 0, sent = count;
    int failed = 0;
    if (count == 0)
        chosen[count++] = self->unread;
    for (; put < count; put++) {
        if ((failed = PyList_Append(self->log, chosen[put]) < 0))
            break;
        if ((failed = PyList_Append(chosen[put], row) < 0)) {
            cut_list(self->log, PyList_GET_SIZE(self->log) - 1);
            break;
        }
    }
    if (!failed && sent != 1) { /* as Emitter.emit says it: one row emitted, so many sent */
        PyObject *note = Py_BuildValue("nnii", mark, 1 - count, sent == 0 ? -1 : 0, 0);
        failed = note == NULL || PyList_Append(self->spreads, note) < 0;
        Py_XDECREF(note);
    }
    if (!failed)
        return 0;
    PyObject *error, *value, *trace;
    PyErr_Fetch(&error, &value, &trace);
    while (put-- > 0) {
        cut_list(self->log, PyList_GET_SIZE(self->log) - 1);
        cut_list(chosen[put], PyList_GET_SIZE(chosen[put]) - 1);
    }
    PyErr_Restore(error, value, trace);
    return -1;
}

/* Whose stream a call is for; NULL, without an error: the plain way knows. */
static Emit *
emit_of(Emit *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    if (count < 1 || count + named > 2 ||
        (named == 1 && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "stream") != 0))
        return NULL;
    if (count + named == 1 || args[1] == self->stream)
        return self;
    PyObject *found = PyUnicode_CheckExact(args[1]) ? PyDict_GetItemWithError(self->others, args[1]) : NULL;
    if (found == NULL)
        PyErr_Clear();
    return found != NULL && Py_TYPE(found) == &EmitType ? (Emit *)found : NULL;
}

static PyObject *
emit_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Emit *self = emit_of((Emit *)callable, args, PyVectorcall_NARGS(nargsf), names);
    if (self == NULL || !(PyTuple_CheckExact(args[0]) || PyList_CheckExact(args[0])))
        return PyObject_Vectorcall(((Emit *)callable)->plain, args, PyVectorcall_NARGS(nargsf), names);
    Py_ssize_t several = PyTuple_GET_SIZE(self->picks), picked = 0;
    PyObject *row = NULL, *chosen[MOST_PICKS];
    PyObject *values = PyTuple_CheckExact(args[0]) ? Py_NewRef(args[0]) : PyList_AsTuple(args[0]);
    if (values == NULL)
        return NULL;
    int is_usual = PyTuple_GET_SIZE(values) == self->width && SLOT(self->emitter, self->roots) != NULL, is_flat = 1;
    for (Py_ssize_t at = 0; is_usual && is_flat && at < self->width; at++)
        is_flat = is_plain(PyTuple_GET_ITEM(values, at));
    if (is_usual && !is_flat) {
        Py_SETREF(values, normal_values(values, self->rest));
        if (values == NULL) {
            if (!PyErr_ExceptionMatches(PyExc_Exception))
                return NULL;
            PyErr_Clear(); /* the plain way raises it again, and names the field */
            is_usual = 0;
        }
    }
    if (is_usual && self->holds != Py_None) {
        PyObject *answer = PyObject_CallOneArg(self->holds, values);
        is_usual = answer == NULL ? -1 : PyObject_IsTrue(answer);
        Py_XDECREF(answer);
        if (is_usual < 0) {
            Py_DECREF(values);
            return NULL;
        }
    }
    if (!is_usual) {
        Py_XDECREF(values);
        return PyObject_Vectorcall(self->plain, args, PyVectorcall_NARGS(nargsf), names);
    }
    for (; picked < several; picked++)
        if ((chosen[picked] = picked_rows(PyTuple_GET_ITEM(self->picks, picked), values)) == NULL)
            break;
    PyObject *roots = SLOT(self->emitter, self->roots);
    int failed = picked < several || roots == NULL || (row = PyTuple_New(3)) == NULL;
    if (!failed) {
        PyTuple_SET_ITEM(row, 0, Py_NewRef(values));
        PyTuple_SET_ITEM(row, 1, Py_NewRef(roots));
        PyTuple_SET_ITEM(row, 2, Py_NewRef(self->source));
        failed = put_rows(self, chosen, several, row) < 0;
        Py_DECREF(row);
    }
    Py_DECREF(values);
    while (picked-- > 0)
        Py_DECREF(chosen[picked]);
    if (failed) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_AttributeError, "an emitter without roots");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
emit_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    PyObject *emitter, *log, *spreads, *unread, *picks, *source, *stream, *plain, *rest, *holds, *others;
    const char *slot;
    Py_ssize_t width;
    if (!PyArg_ParseTuple(args, "OsO!O!O!O!OnUOOOO!", &emitter, &slot, &PyList_Type, &log, &PyList_Type, &spreads, &PyList_Type, &unread,
                          &PyTuple_Type, &picks, &source, &width, &stream, &plain, &rest, &holds, &PyDict_Type, &others))
        return NULL;
    if (PyTuple_GET_SIZE(picks) > MOST_PICKS) {
        PyErr_SetString(PyExc_ValueError, "more than 64 pickers");
        return NULL;
    }
    Py_ssize_t roots = slot_of((PyObject *)Py_TYPE(emitter), slot);
    if (roots < 0)
        return NULL;
    Emit *self = (Emit *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->call = emit_call;
    self->emitter = Py_NewRef(emitter);
    self->roots = roots;
    self->log = Py_NewRef(log);
    self->spreads = Py_NewRef(spreads);
    self->unread = Py_NewRef(unread);
    self->others = Py_NewRef(others);
    self->picks = Py_NewRef(picks);
    self->source = Py_NewRef(source);
    self->width = width;
    self->stream = Py_NewRef(stream);
    PyUnicode_InternInPlace(&self->stream);
    self->plain = Py_NewRef(plain);
    self->rest = Py_NewRef(rest);
    self->holds = Py_NewRef(holds);
    return (PyObject *)self;
}

static int
emit_traverse(Emit *self, visitproc visit, void *arg)
{
    Py_VISIT(self->emitter);
    Py_VISIT(self->log);
    Py_VISIT(self->spreads);
    Py_VISIT(self->unread);
    Py_VISIT(self->others);
    Py_VISIT(self->picks);
    Py_VISIT(self->source);
    Py_VISIT(self->plain);
    Py_VISIT(self->rest);
    Py_VISIT(self->holds);
    return 0;
}

static int
emit_clear(Emit *self)
{
    Py_CLEAR(self->emitter);
    Py_CLEAR(self->log);
    Py_CLEAR(self->spreads);
    Py_CLEAR(self->unread);
    Py_CLEAR(self->others);
    Py_CLEAR(self->picks);
    Py_CLEAR(self->source);
    Py_CLEAR(self->stream);
    Py_CLEAR(self->plain);
    Py_CLEAR(self->rest);
    Py_CLEAR(self->holds);
    return 0;
}

static void
emit_dealloc(Emit *self)
{
    PyObject_GC_UnTrack(self);
    emit_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyTypeObject EmitType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sparkstorm.common.model._core.Emit",
    .tp_doc = "Emit(emitter, slot of its roots, log, spreads, unread, pickers, source, width, stream, plain, rest, holds, others): emit of a "
              "stream whose pickers choose one task each, and of the other streams by name.",
    .tp_basicsize = sizeof(Emit),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = emit_new,
    .tp_traverse = (traverseproc)emit_traverse,
    .tp_clear = (inquiry)emit_clear,
    .tp_dealloc = (destructor)emit_dealloc,
    .tp_vectorcall_offset = offsetof(Emit, call),
    .tp_call = PyVectorcall_Call,
};

/* ---- SpoutEmit: emit with a message id, whose batch of trees is open; twin: SpoutCollector._emit_plainly ---- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *emitter;
    Py_ssize_t roots; /* where the emitter has them */
    PyObject *trees;
    Py_ssize_t root, start, size; /* where these have the batch's root, the place of its first message and the most it may have */
    PyObject *ids;                /* of messages */
    PyObject *emit;
    PyObject *plain;
} SpoutEmit;

/* Find the second argument of an emit, by place or name, and its stream, which may be missing; 0: any other call. */
static int
read_emission(PyObject *const *args, Py_ssize_t count, PyObject *names, const char *name, PyObject **second, PyObject **stream)
{
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    *second = count > 1 ? args[1] : NULL;
    *stream = count > 2 ? args[2] : NULL;
    if (count < 1 || count > 3)
        return 0;
    for (Py_ssize_t n = 0; n < named; n++) {
        PyObject *key = PyTuple_GET_ITEM(names, n);
        PyObject **place = PyUnicode_CompareWithASCIIString(key, name) == 0       ? second
                           : PyUnicode_CompareWithASCIIString(key, "stream") == 0 ? stream
                                                                                  : NULL;
        if (place == NULL || *place != NULL)
            return 0;
        *place = args[count + n];
    }
    return *second != NULL;
}

/* Call emit(values) or emit(values, stream). */
static inline PyObject *
emit_values(PyObject *emit, PyObject *values, PyObject *stream)
{
    PyObject *call[3] = {NULL, values, stream};
    return PyObject_Vectorcall(emit, call + 1, (stream == NULL ? 1 : 2) | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
}

static PyObject *
spout_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names)
{
    SpoutEmit *self = (SpoutEmit *)callable;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    long long id, root, start, size;
    PyObject *message_id, *stream;
    int is_usual = read_emission(args, count, names, "message_id", &message_id, &stream);
    if (!is_usual || !read_number(message_id, &id) || !read_number(SLOT(self->trees, self->start), &start) || start < 0 ||
        start > PyList_GET_SIZE(self->ids) || !read_number(SLOT(self->trees, self->size), &size) ||
        PyList_GET_SIZE(self->ids) - start >= size || !read_number(SLOT(self->trees, self->root), &root) || root < 0 ||
        root > LLONG_MAX - (PyList_GET_SIZE(self->ids) - start))
        return PyObject_Vectorcall(self->plain, args, count, names);
    PyObject *of_message = PyLong_FromLongLong(root + PyList_GET_SIZE(self->ids) - start);
    if (of_message == NULL)
        return NULL;
    set_slot(self->emitter, self->roots, of_message);
    Py_DECREF(of_message);
    PyObject *result = emit_values(self->emit, args[0], stream);
    if (result != NULL && PyList_Append(self->ids, message_id) < 0)
        Py_CLEAR(result);
    return result;
}

static PyObject *
spout_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    PyObject *emitter, *trees, *ids, *emit, *plain;
    const char *slot;
    if (!PyArg_ParseTuple(args, "OsOO!OO", &emitter, &slot, &trees, &PyList_Type, &ids, &emit, &plain))
        return NULL;
    PyObject *kind = (PyObject *)Py_TYPE(trees);
    Py_ssize_t roots, root, start, size;
    if ((roots = slot_of((PyObject *)Py_TYPE(emitter), slot)) < 0 || (root = slot_of(kind, "_root")) < 0 ||
        (start = slot_of(kind, "_start")) < 0 || (size = slot_of(kind, "size")) < 0)
        return NULL;
    SpoutEmit *self = (SpoutEmit *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->call = spout_call;
    self->emitter = Py_NewRef(emitter);
    self->roots = roots;
    self->trees = Py_NewRef(trees);
    self->root = root;
    self->start = start;
    self->size = size;
    self->ids = Py_NewRef(ids);
    self->emit = Py_NewRef(emit);
    self->plain = Py_NewRef(plain);
    return (PyObject *)self;
}

static int
spout_traverse(SpoutEmit *self, visitproc visit, void *arg)
{
    Py_VISIT(self->emitter);
    Py_VISIT(self->trees);
    Py_VISIT(self->ids);
    Py_VISIT(self->emit);
    Py_VISIT(self->plain);
    return 0;
}

static int
spout_clear(SpoutEmit *self)
{
    Py_CLEAR(self->emitter);
    Py_CLEAR(self->trees);
    Py_CLEAR(self->ids);
    Py_CLEAR(self->emit);
    Py_CLEAR(self->plain);
    return 0;
}

static void
spout_dealloc(SpoutEmit *self)
{
    PyObject_GC_UnTrack(self);
    spout_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyTypeObject SpoutEmitType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sparkstorm.common.model._core.SpoutEmit",
    .tp_doc = "SpoutEmit(emitter, slot of its roots, trees, ids, emit, plain): emit of a message of a batch of trees.",
    .tp_basicsize = sizeof(SpoutEmit),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = spout_new,
    .tp_traverse = (traverseproc)spout_traverse,
    .tp_clear = (inquiry)spout_clear,
    .tp_dealloc = (destructor)spout_dealloc,
    .tp_vectorcall_offset = offsetof(SpoutEmit, call),
    .tp_call = PyVectorcall_Call,
};

/* ---- AnchoredEmit and Ack: the usual calls of a bolt that acks by hand; twins: emit and ack of ManualRunner ---- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    unsigned long thread; /* the loop's */
    PyObject *emitter;
    Py_ssize_t roots; /* where the emitter has them; -1: it has others */
    PyObject *emit;
    PyTypeObject *tuple;
    Fields of;
    PyObject *plain;
} AnchoredEmit;

static PyObject *
anchored_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names)
{
    AnchoredEmit *self = (AnchoredEmit *)callable;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    PyObject *roots, *anchor, *stream;
    int is_usual = read_emission(args, count, names, "anchors", &anchor, &stream);
    if (!is_usual || Py_TYPE(anchor) != self->tuple || PyThread_get_thread_ident() != self->thread ||
        (roots = SLOT(anchor, self->of.roots)) == NULL)
        return PyObject_Vectorcall(self->plain, args, count, names);
    if (self->roots >= 0)
        set_slot(self->emitter, self->roots, roots);
    return emit_values(self->emit, args[0], stream);
}

static PyObject *
anchored_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    unsigned long thread;
    const char *slot;
    Py_ssize_t roots = -1;
    PyObject *emitter, *emit, *tuple, *plain;
    Fields of;
    if (!PyArg_ParseTuple(args, "kOzOO!O", &thread, &emitter, &slot, &emit, &PyType_Type, &tuple, &plain) ||
        take_fields(tuple, &of) < 0 || (slot != NULL && (roots = slot_of((PyObject *)Py_TYPE(emitter), slot)) < 0))
        return NULL;
    AnchoredEmit *self = (AnchoredEmit *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->call = anchored_call;
    self->thread = thread;
    self->emitter = Py_NewRef(emitter);
    self->roots = roots;
    self->emit = Py_NewRef(emit);
    self->tuple = (PyTypeObject *)Py_NewRef(tuple);
    self->of = of;
    self->plain = Py_NewRef(plain);
    return (PyObject *)self;
}

static int
anchored_traverse(AnchoredEmit *self, visitproc visit, void *arg)
{
    Py_VISIT(self->emitter);
    Py_VISIT(self->emit);
    Py_VISIT(self->tuple);
    Py_VISIT(self->plain);
    return 0;
}

static int
anchored_clear(AnchoredEmit *self)
{
    Py_CLEAR(self->emitter);
    Py_CLEAR(self->emit);
    Py_CLEAR(self->tuple);
    Py_CLEAR(self->plain);
    return 0;
}

static void
anchored_dealloc(AnchoredEmit *self)
{
    PyObject_GC_UnTrack(self);
    anchored_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyTypeObject AnchoredEmitType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sparkstorm.common.model._core.AnchoredEmit",
    .tp_doc = "AnchoredEmit(thread, emitter, slot of its roots or None, emit, tuple_type, plain): emit anchored to one tuple.",
    .tp_basicsize = sizeof(AnchoredEmit),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = anchored_new,
    .tp_traverse = (traverseproc)anchored_traverse,
    .tp_clear = (inquiry)anchored_clear,
    .tp_dealloc = (destructor)anchored_dealloc,
    .tp_vectorcall_offset = offsetof(AnchoredEmit, call),
    .tp_call = PyVectorcall_Call,
};

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    unsigned long thread;
    PyObject *outstanding, *acked;
    PyObject *answers; /* by input; with any, the plain way */
    PyObject *plain;
    PyObject *current; /* the input that run_tuples executes, which is not among `outstanding`; NULL: none, or it was put there */
    int is_acked;      /* the current one */
} Ack;

static PyTypeObject AckType;

/* Put the input that is executed where the plain way has it. */
static int
show_current(Ack *self)
{
    PyObject *current = self->current;
    if (current == NULL)
        return 0;
    self->current = NULL;
    PyObject *key = self->is_acked ? NULL : PyLong_FromVoidPtr(current);
    int failed = !self->is_acked && (key == NULL || PyDict_SetItem(self->outstanding, key, current) < 0);
    Py_XDECREF(key);
    Py_DECREF(current);
    return failed ? -1 : 0;
}

static PyObject *
ack_show(Ack *self, PyObject *Py_UNUSED(ignored))
{
    if (show_current(self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
ack_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Ack *self = (Ack *)callable;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    if (names != NULL || count != 1 || PyDict_GET_SIZE(self->answers) > 0 || PyThread_get_thread_ident() != self->thread)
        return PyObject_Vectorcall(self->plain, args, count, names);
    if (args[0] == self->current && !self->is_acked) {
        self->is_acked = 1;
        Py_RETURN_NONE;
    }
    PyObject *key = PyLong_FromVoidPtr(args[0]);
    PyObject *found = key == NULL ? NULL : PyDict_GetItemWithError(self->outstanding, key);
    if (found == NULL) {
        Py_XDECREF(key);
        return PyErr_Occurred() ? NULL : PyObject_Vectorcall(self->plain, args, count, NULL);
    }
    int failed = PyList_Append(self->acked, args[0]) < 0;
    if (!failed && (failed = PyDict_DelItem(self->outstanding, key) < 0))
        cut_list(self->acked, PyList_GET_SIZE(self->acked) - 1);
    Py_DECREF(key);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
ack_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    unsigned long thread;
    PyObject *outstanding, *acked, *answers, *plain;
    if (!PyArg_ParseTuple(args, "kO!O!O!O", &thread, &PyDict_Type, &outstanding, &PyList_Type, &acked, &PyDict_Type, &answers, &plain))
        return NULL;
    Ack *self = (Ack *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->call = ack_call;
    self->thread = thread;
    self->outstanding = Py_NewRef(outstanding);
    self->acked = Py_NewRef(acked);
    self->answers = Py_NewRef(answers);
    self->plain = Py_NewRef(plain);
    return (PyObject *)self;
}

static int
ack_traverse(Ack *self, visitproc visit, void *arg)
{
    Py_VISIT(self->outstanding);
    Py_VISIT(self->acked);
    Py_VISIT(self->answers);
    Py_VISIT(self->plain);
    Py_VISIT(self->current);
    return 0;
}

static int
ack_clear(Ack *self)
{
    Py_CLEAR(self->outstanding);
    Py_CLEAR(self->acked);
    Py_CLEAR(self->answers);
    Py_CLEAR(self->plain);
    Py_CLEAR(self->current);
    return 0;
}

static void
ack_dealloc(Ack *self)
{
    PyObject_GC_UnTrack(self);
    ack_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef ack_methods[] = {
    {"show", (PyCFunction)ack_show, METH_NOARGS, "Put the input that is executed among the outstanding ones, unless it was acked."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject AckType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sparkstorm.common.model._core.Ack",
    .tp_doc = "Ack(thread, outstanding, acked, answers, plain): ack of an input that waits for no other tuples.",
    .tp_basicsize = sizeof(Ack),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = ack_new,
    .tp_traverse = (traverseproc)ack_traverse,
    .tp_clear = (inquiry)ack_clear,
    .tp_dealloc = (destructor)ack_dealloc,
    .tp_vectorcall_offset = offsetof(Ack, call),
    .tp_call = PyVectorcall_Call,
    .tp_methods = ack_methods,
};

/* ---- Reader: base of Tuple, which reads values by name or place; twin: the class of that name in common/model/tuples.py ---- */

static struct {
    PyTypeObject *tuple, *source;
    Fields of;
    Py_ssize_t positions;
    PyObject *plain;
} reading;

static PyObject *
read_item(PyObject *self, PyObject *which)
{
    if (reading.tuple == NULL || !PyObject_TypeCheck(self, reading.tuple)) {
        PyErr_SetString(PyExc_TypeError, "no tuple");
        return NULL;
    }
    PyObject *values = SLOT(self, reading.of.values), *source = SLOT(self, reading.of.source);
    if (values != NULL && !PyUnicode_CheckExact(which))
        return PyObject_GetItem(values, which);
    if (values != NULL && PyTuple_CheckExact(values) && source != NULL && Py_TYPE(source) == reading.source) {
        PyObject *positions = SLOT(source, reading.positions);
        PyObject *place = positions == NULL || !PyDict_CheckExact(positions) ? NULL : PyDict_GetItemWithError(positions, which);
        long long at = 0;
        if (read_number(place, &at) && at >= 0 && at < PyTuple_GET_SIZE(values))
            return Py_NewRef(PyTuple_GET_ITEM(values, at));
        if (PyErr_Occurred())
            return NULL;
    }
    PyObject *call[3] = {NULL, self, which};
    return PyObject_Vectorcall(reading.plain, call + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
}

/* For the protocol of sequences, such as `reversed`. */
static PyObject *
read_place(PyObject *self, Py_ssize_t place)
{
    PyObject *which = PyLong_FromSsize_t(place), *found = which == NULL ? NULL : read_item(self, which);
    Py_XDECREF(which);
    return found;
}

static PyMappingMethods reader_mapping = {.mp_subscript = read_item};
static PySequenceMethods reader_sequence = {.sq_item = read_place};

static PyTypeObject ReaderType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sparkstorm.common.model._core.Reader",
    .tp_doc = "Base of tuples: reads their values.",
    .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_as_mapping = &reader_mapping,
    .tp_as_sequence = &reader_sequence,
};

PyDoc_STRVAR(set_reading_doc, "set_reading(class of tuples, class of sources, plain): how Reader reads; `plain` is for all unusual cases.");

static PyObject *
set_reading(PyObject *module, PyObject *args)
{
    PyObject *tuple, *source, *plain;
    Fields of;
    if (!PyArg_ParseTuple(args, "O!O!O", &PyType_Type, &tuple, &PyType_Type, &source, &plain) || take_fields(tuple, &of) < 0)
        return NULL;
    Py_ssize_t positions = slot_of(source, "position_by_field");
    if (positions < 0)
        return NULL;
    reading.of = of;
    reading.positions = positions;
    Py_XSETREF(reading.plain, Py_NewRef(plain));
    Py_XSETREF(reading.source, (PyTypeObject *)Py_NewRef(source));
    Py_XSETREF(reading.tuple, (PyTypeObject *)Py_NewRef(tuple));
    Py_RETURN_NONE;
}

/* ---- StateMethod: MemoryState's add of an int, get and put of scalars; new keys are int, text or a tuple of them ---- */

enum { ADD, GET, PUT };

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyTypeObject *owner;
    Py_ssize_t data, undo, unchecked;
    PyObject *missing, *plain;
} StateMethod;

static int
is_plain_key(PyObject *key)
{
    if (PyLong_CheckExact(key) || PyUnicode_CheckExact(key))
        return 1;
    if (!PyTuple_CheckExact(key))
        return 0;
    for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(key); n++) {
        PyObject *part = PyTuple_GET_ITEM(key, n);
        if (!PyLong_CheckExact(part) && !PyUnicode_CheckExact(part))
            return 0;
    }
    return 1;
}

static PyObject *one;

/* Set a value under a key, and its former value, or `missing`, in `undo`; all of it or, with an error, nothing. */
static int
put_value(PyObject *data, PyObject *undo, PyObject *key, Py_hash_t hash, PyObject *former, PyObject *value)
{
    Py_ssize_t mark = PyList_GET_SIZE(undo);
    Py_INCREF(data);
    Py_INCREF(undo);
    int done = PyList_Append(undo, key) == 0 && PyList_Append(undo, former) == 0 && PyList_Append(undo, value) == 0 &&
               _PyDict_SetItem_KnownHash(data, key, value, hash) == 0;
    Py_DECREF(data);
    if (done) {
        Py_DECREF(undo);
        return 0;
    }
    PyObject *error, *cause, *trace;
    PyErr_Fetch(&error, &cause, &trace);
    PyList_SetSlice(undo, mark, PyList_GET_SIZE(undo), NULL);
    Py_DECREF(undo);
    PyErr_Restore(error, cause, trace);
    return -1;
}

/* Clear an error that the plain way raises again; return whether another one is left, such as an interrupt. */
static int
is_interrupted(void)
{
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_Clear();
    return PyErr_Occurred() != NULL;
}

/* The former value under a key that a change may be made to; `missing` under a new one of a usual type; NULL, without an error: the
   plain way knows; NULL with one: an interrupt. A new reference, as code of the key may change the state. */
static PyObject *
former_of(StateMethod *self, PyObject *state, PyObject *key, Py_hash_t *hash)
{
    PyObject *data = SLOT(state, self->data), *undo = SLOT(state, self->undo);
    PyObject *unchecked = SLOT(state, self->unchecked); /* empty: every value is looked at, the plain way */
    if (data == NULL || undo == NULL || unchecked == NULL || !PyDict_CheckExact(data) || !PyList_CheckExact(undo) ||
        !PyAnySet_Check(unchecked) || PySet_GET_SIZE(unchecked) == 0 || is_other_key(key))
        return NULL;
    Py_INCREF(data); /* code of the key may give the state another one */
    *hash = PyObject_Hash(key);
    PyObject *former = *hash == -1 ? NULL : Py_XNewRef(_PyDict_GetItem_KnownHash(data, key, *hash));
    Py_DECREF(data);
    if (former == NULL && !PyErr_Occurred() && is_plain_key(key))
        return Py_NewRef(self->missing);
    if (former == NULL)
        is_interrupted(); /* a key without a hash: the plain way raises it again */
    return former;
}

static PyObject *
add_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names)
{
    StateMethod *self = (StateMethod *)callable;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    PyObject *former = NULL, *amount = count == 3 ? args[2] : one;
    Py_hash_t hash;
    if (names == NULL && count >= 2 && count <= 3 && PyObject_TypeCheck(args[0], self->owner) && PyLong_CheckExact(amount))
        former = former_of(self, args[0], args[1], &hash);
    if (former == NULL || (former != self->missing && !PyLong_CheckExact(former))) {
        Py_XDECREF(former);
        return PyErr_Occurred() ? NULL : PyObject_Vectorcall(self->plain, args, count, names);
    }
    PyObject *total = former == self->missing ? Py_NewRef(amount) : PyNumber_Add(former, amount);
    if (total != NULL && put_value(SLOT(args[0], self->data), SLOT(args[0], self->undo), args[1], hash, former, total) < 0)
        Py_CLEAR(total);
    Py_DECREF(former);
    return total;
}

static PyObject *
put_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names)
{
    StateMethod *self = (StateMethod *)callable;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    PyObject *former = NULL;
    Py_hash_t hash;
    if (names == NULL && count == 3 && PyObject_TypeCheck(args[0], self->owner) && is_scalar(args[2]))
        former = former_of(self, args[0], args[1], &hash);
    if (former == NULL)
        return PyErr_Occurred() ? NULL : PyObject_Vectorcall(self->plain, args, count, names);
    int failed = put_value(SLOT(args[0], self->data), SLOT(args[0], self->undo), args[1], hash, former, args[2]) < 0;
    Py_DECREF(former);
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyObject *
get_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names)
{
    StateMethod *self = (StateMethod *)callable;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    if (names == NULL && count >= 2 && count <= 3 && PyObject_TypeCheck(args[0], self->owner)) {
        PyObject *data = SLOT(args[0], self->data), *other = count == 3 ? args[2] : Py_None;
        if (data != NULL && PyDict_CheckExact(data) && !is_other_key(args[1])) {
            Py_INCREF(data);
            PyObject *found = Py_XNewRef(PyDict_GetItemWithError(data, args[1]));
            Py_DECREF(data);
            if (found != NULL && is_scalar(found))
                return found;
            if (found == NULL && !PyErr_Occurred())
                return Py_NewRef(other);
            Py_XDECREF(found);
            if (is_interrupted()) /* a key without a hash: the plain way raises it again */
                return NULL;
        }
    }
    return PyObject_Vectorcall(self->plain, args, count, names);
}

static PyObject *
method_bind(PyObject *self, PyObject *object, PyObject *type)
{
    if (object == NULL || object == Py_None)
        return Py_NewRef(self);
    return PyMethod_New(self, object);
}

static PyObject *
method_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static const vectorcallfunc calls[] = {add_call, get_call, put_call};
    int kind;
    PyObject *owner, *plain, *missing;
    if (!PyArg_ParseTuple(args, "iO!OO", &kind, &PyType_Type, &owner, &plain, &missing))
        return NULL;
    if (kind < ADD || kind > PUT) {
        PyErr_SetString(PyExc_ValueError, "no method of a state");
        return NULL;
    }
    Py_ssize_t data = slot_of(owner, "_data"), undo = data < 0 ? -1 : slot_of(owner, "undo");
    Py_ssize_t unchecked = undo < 0 ? -1 : slot_of(owner, "_unchecked");
    if (unchecked < 0)
        return NULL;
    StateMethod *self = (StateMethod *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->call = calls[kind];
    self->owner = (PyTypeObject *)Py_NewRef(owner);
    self->data = data;
    self->undo = undo;
    self->unchecked = unchecked;
    self->missing = Py_NewRef(missing);
    self->plain = Py_NewRef(plain);
    return (PyObject *)self;
}

static int
method_traverse(StateMethod *self, visitproc visit, void *arg)
{
    Py_VISIT(self->owner);
    Py_VISIT(self->missing);
    Py_VISIT(self->plain);
    return 0;
}

static int
method_clear(StateMethod *self)
{
    Py_CLEAR(self->owner);
    Py_CLEAR(self->missing);
    Py_CLEAR(self->plain);
    return 0;
}

static void
method_dealloc(StateMethod *self)
{
    PyObject_GC_UnTrack(self);
    method_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef method_members[] = {
    {"plain", T_OBJECT_EX, offsetof(StateMethod, plain), READONLY, "the method that it stands in for"},
    {"__wrapped__", T_OBJECT_EX, offsetof(StateMethod, plain), READONLY, "the same, for inspect"},
    {NULL, 0, 0, 0, NULL},
};

/* Its name and documentation are those of the method that it stands in for: help() and editors show them. */
static PyObject *
method_says(StateMethod *self, void *name)
{
    return PyObject_GetAttrString(self->plain, name);
}

static PyGetSetDef method_getters[] = {
    {"__name__", (getter)method_says, NULL, NULL, "__name__"},
    {"__qualname__", (getter)method_says, NULL, NULL, "__qualname__"},
    {"__doc__", (getter)method_says, NULL, NULL, "__doc__"},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject StateMethodType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sparkstorm.common.model._core.StateMethod",
    .tp_doc = "StateMethod(kind, class, plain, missing): its method add, get or put; `missing` is no former value.",
    .tp_basicsize = sizeof(StateMethod),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = method_new,
    .tp_traverse = (traverseproc)method_traverse,
    .tp_clear = (inquiry)method_clear,
    .tp_dealloc = (destructor)method_dealloc,
    .tp_vectorcall_offset = offsetof(StateMethod, call),
    .tp_call = PyVectorcall_Call,
    .tp_members = method_members,
    .tp_getset = method_getters,
    .tp_descr_get = method_bind,
};

/* ---- functions ---- */

/* Where the last classes of tuples and of emitters have their slots: a turn of few rows would pay more for looking them up than for
   the rows. */
static struct {
    PyObject *tuple, *emitter;
    Fields of;
    Py_ssize_t roots;
} known;

static int
find_slots(PyObject *type, PyObject *emitter, Fields *of, Py_ssize_t *roots)
{
    if (type != known.tuple) {
        if (take_fields(type, of) < 0)
            return -1;
        known.of = *of;
        Py_XSETREF(known.tuple, Py_NewRef(type));
    }
    if ((PyObject *)Py_TYPE(emitter) != known.emitter) {
        if ((*roots = slot_of((PyObject *)Py_TYPE(emitter), "roots")) < 0)
            return -1;
        known.roots = *roots;
        Py_XSETREF(known.emitter, Py_NewRef((PyObject *)Py_TYPE(emitter)));
    }
    *of = known.of;
    *roots = known.roots;
    return 0;
}

PyDoc_STRVAR(run_rows_doc,
             "run_rows(rows, start, execute, collector, emitter, log, undo, marks, tuple_type): execute rows from a place on.\n\n"
             "Where a call raises, `marks` gets its place and the lengths that log and undo had before it. Twin: BasicRunner.");

static PyObject *
run_rows(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 9 || !PyList_CheckExact(args[0]) || !PyList_CheckExact(args[5]) || !PyList_Check(args[6]) ||
        !PyList_CheckExact(args[7]) || !PyType_Check(args[8])) {
        PyErr_SetString(PyExc_TypeError, "run_rows takes lists of rows, log, undo and marks");
        return NULL;
    }
    PyObject *rows = args[0], *execute = args[2], *collector = args[3], *emitter = args[4], *log = args[5], *undo = args[6];
    PyTypeObject *type = (PyTypeObject *)args[8];
    Py_ssize_t at = PyLong_AsSsize_t(args[1]);
    if (at < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "rows begin at 0");
        return NULL;
    }
    Fields of;
    Py_ssize_t emitter_roots;
    if (find_slots(args[8], emitter, &of, &emitter_roots) < 0)
        return NULL;
    PyObject *tuple = NULL, *result;
    Py_ssize_t mark = 0, undo_mark = 0;
    for (; at < PyList_GET_SIZE(rows); at++) {
        PyObject *row = PyList_GET_ITEM(rows, at);
        if (!PyTuple_CheckExact(row) || PyTuple_GET_SIZE(row) != 3) {
            PyErr_SetString(PyExc_TypeError, "a row is values, roots and source");
            break;
        }
        if (tuple == NULL || Py_REFCNT(tuple) != 1) { /* user code keeps the last one */
            Py_XDECREF(tuple);
            tuple = type->tp_alloc(type, 0);
            if (tuple == NULL)
                return NULL;
        }
        set_slot(tuple, of.values, PyTuple_GET_ITEM(row, 0));
        set_slot(tuple, of.roots, PyTuple_GET_ITEM(row, 1));
        set_slot(tuple, of.source, PyTuple_GET_ITEM(row, 2));
        set_slot(emitter, emitter_roots, PyTuple_GET_ITEM(row, 1));
        mark = PyList_GET_SIZE(log);
        undo_mark = PyList_GET_SIZE(undo);
        result = call_execute(execute, tuple, collector);
        if (result == NULL)
            break;
        Py_DECREF(result);
    }
    Py_XDECREF(tuple);
    if (!PyErr_Occurred())
        Py_RETURN_NONE;
    PyObject *error, *value, *trace;
    PyErr_Fetch(&error, &value, &trace);
    Py_ssize_t said[3] = {at, mark, undo_mark};
    for (int n = 0; n < 3; n++) {
        PyObject *number = PyLong_FromSsize_t(said[n]);
        if (number == NULL || PyList_SetItem(args[7], n, number) < 0) {
            Py_XDECREF(error);
            Py_XDECREF(value);
            Py_XDECREF(trace);
            return NULL;
        }
    }
    PyErr_Restore(error, value, trace);
    return NULL;
}

PyDoc_STRVAR(run_tuples_doc,
             "run_tuples(items, start, execute, acks, failed, log, undo, acked, kept, marks, tuple_type): execute rows or tuples from a place\n"
             "on, each of them outstanding; the place behind the last one, or of the first call after which `failed` has anything.\n\n"
             "`kept` gets the inputs before that call which are outstanding still, `marks` the place, the lengths that log, undo and acked\n"
             "had before it, and its tuple; also where a call raises. Twin: _run_tuples of data_plane/executor/manual_runner.py.");

/* Take what a call has acked itself out of the list from a place on. */
static int
cut_acked(PyObject *acked, Py_ssize_t from, PyObject *tuple)
{
    for (Py_ssize_t at = PyList_GET_SIZE(acked) - 1; at >= from; at--)
        if (PyList_GET_ITEM(acked, at) == tuple && PyList_SetSlice(acked, at, at + 1, NULL) < 0)
            return -1;
    return 0;
}

/* After a call: end its input's way as far as the call has decided. */
static int
end_call(Ack *acks, PyObject *tuple, Py_ssize_t acked_before, PyObject *kept)
{
    if (acks->current == tuple && acks->is_acked) {
        Py_CLEAR(acks->current);
        return 0;
    }
    PyObject *key = show_current(acks) < 0 ? NULL : PyLong_FromVoidPtr(tuple);
    int is_held = key == NULL ? -1 : PyDict_Contains(acks->outstanding, key);
    Py_XDECREF(key);
    if (is_held < 0)
        return -1;
    return is_held ? PyList_Append(kept, tuple) : cut_acked(acks->acked, acked_before, tuple);
}

/* The tuple of an item: itself, or one with a row's values, the former one where nobody else has it. Takes the former one. */
static PyObject *
tuple_of(PyObject *items, Py_ssize_t at, PyObject *former, PyTypeObject *type, const Fields *of)
{
    PyObject *item = Py_NewRef(PyList_GET_ITEM(items, at)), *tuple = NULL;
    if (PyObject_TypeCheck(item, type)) {
        Py_XDECREF(former);
        return item;
    }
    if (!PyTuple_CheckExact(item) || PyTuple_GET_SIZE(item) != 3)
        PyErr_SetString(PyExc_TypeError, "a row is values, roots and source");
    else if (former != NULL && Py_TYPE(former) == type && Py_REFCNT(former) == 1) {
        tuple = former;
        former = NULL;
    } else
        tuple = type->tp_alloc(type, 0);
    if (tuple != NULL) {
        set_slot(tuple, of->values, PyTuple_GET_ITEM(item, 0));
        set_slot(tuple, of->roots, PyTuple_GET_ITEM(item, 1));
        set_slot(tuple, of->source, PyTuple_GET_ITEM(item, 2));
    }
    Py_XDECREF(former);
    Py_DECREF(item);
    return tuple;
}

static int
put_marks(PyObject *marks, const Py_ssize_t *numbers, PyObject *tuple)
{
    for (int n = 0; n < 4; n++) {
        PyObject *number = PyLong_FromSsize_t(numbers[n]);
        if (number == NULL || PyList_SetItem(marks, n, number) < 0)
            return -1;
    }
    return PyList_SetItem(marks, 4, Py_NewRef(tuple == NULL ? Py_None : tuple));
}

static PyObject *
run_tuples(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Fields of;
    if (count != 11 || !PyList_CheckExact(args[0]) || Py_TYPE(args[3]) != &AckType || !PyList_CheckExact(args[4]) ||
        !PyList_CheckExact(args[5]) || !PyList_Check(args[6]) || !PyList_CheckExact(args[7]) || !PyList_CheckExact(args[8]) ||
        !PyList_CheckExact(args[9]) || !PyType_Check(args[10])) {
        PyErr_SetString(PyExc_TypeError, "run_tuples takes an Ack, and lists of rows, failures, log, undo, acked, kept and marks");
        return NULL;
    }
    if (take_fields(args[10], &of) < 0)
        return NULL;
    PyObject *items = args[0], *execute = args[2], *failed = args[4], *tuple = NULL;
    Ack *acks = (Ack *)args[3];
    Py_ssize_t said[4] = {PyLong_AsSsize_t(args[1]), 0, 0, 0};
    if (said[0] < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "tuples begin at 0");
        return NULL;
    }
    for (; said[0] < PyList_GET_SIZE(items); said[0]++) {
        for (int n = 1; n < 4; n++)
            said[n] = PyList_GET_SIZE(args[n + 4]);
        if ((tuple = tuple_of(items, said[0], tuple, (PyTypeObject *)args[10], &of)) == NULL || show_current(acks) < 0)
            break;
        acks->current = Py_NewRef(tuple);
        acks->is_acked = 0;
        PyObject *call[2] = {NULL, tuple};
        PyObject *result = PyObject_Vectorcall(execute, call + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        Py_XDECREF(result);
        if (result == NULL || PyList_GET_SIZE(failed) > 0 || end_call(acks, tuple, said[3], args[8]) < 0)
            break;
    }
    PyObject *error, *value, *trace;
    PyErr_Fetch(&error, &value, &trace);
    int is_lost = show_current(acks) < 0 || put_marks(args[9], said, tuple) < 0;
    Py_XDECREF(tuple);
    if (is_lost) {
        Py_XDECREF(error);
        Py_XDECREF(value);
        Py_XDECREF(trace);
        return NULL;
    }
    if (error == NULL)
        return PyLong_FromSsize_t(said[0]);
    PyErr_Restore(error, value, trace);
    return NULL;
}

PyDoc_STRVAR(run_values_doc,
             "run_values(values, source, execute, collector, emitter, log, undo, marks, tuple_type): execute values of one source, with 0\n"
             "as roots, forgetting what undoes a row once it is done. Where a call raises, `marks` gets the values and the lengths\n"
             "that log and undo had before it; what the iterator raises leaves them as they are. Twin: BasicRunner.execute_values.");

static PyObject *
run_values(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 9 || !PyIter_Check(args[0]) || !PyList_CheckExact(args[5]) || !PyList_Check(args[6]) ||
        !PyList_CheckExact(args[7]) || !PyType_Check(args[8])) {
        PyErr_SetString(PyExc_TypeError, "run_values takes an iterator of values, and lists of log, undo and marks");
        return NULL;
    }
    PyObject *source = args[1], *execute = args[2], *collector = args[3], *emitter = args[4], *log = args[5], *undo = args[6];
    PyTypeObject *type = (PyTypeObject *)args[8];
    Fields of;
    Py_ssize_t emitter_roots = take_fields(args[8], &of) < 0 ? -1 : slot_of((PyObject *)Py_TYPE(emitter), "roots");
    if (emitter_roots < 0)
        return NULL;
    PyObject *tuple = NULL, *values, *result, *zero = PyLong_FromLong(0);
    if (zero == NULL)
        return NULL;
    set_slot(emitter, emitter_roots, zero);
    Py_ssize_t mark = PyList_GET_SIZE(log), undo_mark = PyList_GET_SIZE(undo);
    while ((values = PyIter_Next(args[0])) != NULL) {
        if (tuple == NULL || Py_REFCNT(tuple) != 1) { /* user code keeps the last one */
            Py_XDECREF(tuple);
            tuple = type->tp_alloc(type, 0);
            if (tuple == NULL) {
                Py_DECREF(values);
                break;
            }
            set_slot(tuple, of.roots, zero);
            set_slot(tuple, of.source, source);
        }
        set_slot(tuple, of.values, values);
        mark = PyList_GET_SIZE(log);
        result = call_execute(execute, tuple, collector);
        if (result == NULL) {
            PyObject *error, *value, *trace, *places[2] = {PyLong_FromSsize_t(mark), PyLong_FromSsize_t(undo_mark)};
            PyErr_Fetch(&error, &value, &trace);
            int failed = PyList_SetItem(args[7], 0, values) < 0; /* takes the reference */
            for (int n = 0; n < 2; n++)
                failed = failed || places[n] == NULL || PyList_SetItem(args[7], n + 1, places[n]) < 0;
            if (failed) {
                Py_XDECREF(error);
                Py_XDECREF(value);
                Py_XDECREF(trace);
            } else
                PyErr_Restore(error, value, trace);
            break;
        }
        Py_DECREF(result);
        Py_DECREF(values);
        cut_list(undo, undo_mark);
        /* A zip fills the tuple that it gave last again where nothing else holds it, instead of a new one for each row. */
        if (Py_REFCNT(tuple) == 1)
            clear_slot(tuple, of.values);
    }
    Py_XDECREF(tuple);
    Py_DECREF(zero);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(tuples_doc, "tuples(rows, tuple_type): a tuple of each row (values, roots, source). Twin: tuples_of of common/model/tuples.py.");

static PyObject *
tuples(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Fields of;
    if (count != 2 || !PyList_CheckExact(args[0]) || !PyType_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "tuples takes a list of rows and a class");
        return NULL;
    }
    if (take_fields(args[1], &of) < 0)
        return NULL;
    PyTypeObject *type = (PyTypeObject *)args[1];
    Py_ssize_t size = PyList_GET_SIZE(args[0]);
    PyObject *found = PyList_New(size);
    for (Py_ssize_t at = 0; found != NULL && at < size; at++) {
        PyObject *tuple = type->tp_alloc(type, 0); /* before the row is looked up: a collection may run code that changes the list */
        PyObject *row = tuple == NULL || at >= PyList_GET_SIZE(args[0]) ? NULL : PyList_GET_ITEM(args[0], at);
        if (row == NULL || !PyTuple_CheckExact(row) || PyTuple_GET_SIZE(row) != 3) {
            if (tuple != NULL)
                PyErr_SetString(PyExc_TypeError, "a row is values, roots and source");
            Py_XDECREF(tuple);
            Py_CLEAR(found);
            break;
        }
        set_slot(tuple, of.values, PyTuple_GET_ITEM(row, 0));
        set_slot(tuple, of.roots, PyTuple_GET_ITEM(row, 1));
        set_slot(tuple, of.source, PyTuple_GET_ITEM(row, 2));
        PyList_SET_ITEM(found, at, tuple);
    }
    return found;
}

PyDoc_STRVAR(are_immutable_doc, "are_immutable(rows, types): whether all values of rows (values, ...) are scalars or of these types; other forms\n"
                                "of rows are left out.\n\nTwin: can_change of data_plane/task_kit/held.py.");

static PyObject *
are_immutable(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyList_CheckExact(args[0]) || !PyAnySet_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "are_immutable takes a list of rows and a set of types");
        return NULL;
    }
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(args[0]); at++) {
        PyObject *row = PyList_GET_ITEM(args[0], at);
        PyObject *values = PyTuple_CheckExact(row) && PyTuple_GET_SIZE(row) > 0 ? PyTuple_GET_ITEM(row, 0) : NULL;
        if (values == NULL || !PyTuple_CheckExact(values))
            continue;
        for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(values); n++) {
            PyObject *value = PyTuple_GET_ITEM(values, n);
            int is_immutable = is_scalar(value) ? 1 : PySet_Contains(args[1], (PyObject *)Py_TYPE(value));
            if (is_immutable < 0)
                return NULL;
            if (!is_immutable)
                Py_RETURN_FALSE;
        }
    }
    Py_RETURN_TRUE;
}

PyDoc_STRVAR(emit_rows_doc, "emit_rows(rows, emit, raise_inside): emit what a generator yields; `raise_inside(rows, error)` raises an "
                            "error of emit at the yield.\n\nTwin: emit_rows of api/functions.py.");

static PyObject *
emit_rows(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3 || !PyIter_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "emit_rows takes an iterator and two callables");
        return NULL;
    }
    PyObject *row, *result;
    while ((row = PyIter_Next(args[0])) != NULL) {
        if (!PyTuple_Check(row)) {
            PyObject *packed = PyTuple_Pack(1, row);
            Py_SETREF(row, packed);
            if (row == NULL)
                return NULL;
        }
        PyObject *call[2] = {NULL, row};
        result = PyObject_Vectorcall(args[1], call + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        Py_DECREF(row);
        if (result != NULL) {
            Py_DECREF(result);
            continue;
        }
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            return NULL;
        PyObject *kind, *error, *trace;
        PyErr_Fetch(&kind, &error, &trace);
        PyErr_NormalizeException(&kind, &error, &trace);
        if (trace != NULL)
            PyException_SetTraceback(error, trace);
        result = PyObject_CallFunctionObjArgs(args[2], args[0], error, NULL);
        Py_XDECREF(kind);
        Py_XDECREF(error);
        Py_XDECREF(trace);
        if (result != NULL) {
            Py_DECREF(result);
            PyErr_SetString(PyExc_RuntimeError, "an error was not raised");
        }
        return NULL;
    }
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

typedef struct {
    Py_ssize_t time_at;             /* field of a row */
    PyObject *key_at;               /* a tuple of fields */
    long long length, floor, last;  /* of cells; times from floor to last */
} Cells;

/* The key ("a", start, *parts) of a row's cell; NULL without an error for a row that needs a closer look. */
static PyObject *
cell_key(PyObject *values, const Cells *cells, PyObject *mark, PyObject **start, long long *start_ms)
{
    if (!PyTuple_CheckExact(values) || PyTuple_GET_SIZE(values) <= cells->time_at)
        return NULL;
    PyObject *time = PyTuple_GET_ITEM(values, cells->time_at);
    int overflow;
    long long at_ms = PyLong_CheckExact(time) ? PyLong_AsLongLongAndOverflow(time, &overflow) : -1;
    if (!PyLong_CheckExact(time) || overflow || at_ms < cells->floor || at_ms > cells->last)
        return NULL;
    if (*start == NULL || *start_ms != at_ms - at_ms % cells->length) {
        *start_ms = at_ms - at_ms % cells->length;
        Py_XSETREF(*start, PyLong_FromLongLong(*start_ms));
        if (*start == NULL)
            return NULL;
    }
    Py_ssize_t parts = PyTuple_GET_SIZE(cells->key_at);
    PyObject *key = PyTuple_New(parts + 2);
    if (key == NULL)
        return NULL;
    PyTuple_SET_ITEM(key, 0, Py_NewRef(mark));
    PyTuple_SET_ITEM(key, 1, Py_NewRef(*start));
    for (Py_ssize_t n = 0; n < parts; n++) {
        Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GET_ITEM(cells->key_at, n));
        if (place < 0 || place >= PyTuple_GET_SIZE(values) || !is_scalar(PyTuple_GET_ITEM(values, place))) {
            Py_DECREF(key);
            return NULL;
        }
        PyTuple_SET_ITEM(key, n + 2, Py_NewRef(PyTuple_GET_ITEM(values, place)));
    }
    return key;
}

/* Whether a value is what its copy was made of: the same containers in the same order, with the very same scalars. */
static int
is_unchanged(PyObject *value, PyObject *copy, int depth)
{
    if (value == copy)
        return 1;
    if (Py_TYPE(value) != Py_TYPE(copy) || depth == 0)
        return 0;
    if (!PyList_CheckExact(value) || PyList_GET_SIZE(value) != PyList_GET_SIZE(copy))
        return 0;
    for (Py_ssize_t n = 0; n < PyList_GET_SIZE(value); n++)
        if (!is_unchanged(PyList_GET_ITEM(value, n), PyList_GET_ITEM(copy, n), depth - 1))
            return 0;
    return 1;
}

PyDoc_STRVAR(fold_cells_doc,
             "fold_cells(rows, begin, (time_at, key_at, length, floor, last), data, undo, unchecked, initial, fold, normalise, check_key,\n"
             "missing, tuple_type, logs, marks, begun): replace the value of each row's cell by fold(it, tuple), from row `begin` to one of\n"
             "another source or that needs a closer look; return that row's place. New cells are added to `begun`. Where a call raises,\n"
             "`marks` has the row's place and the lengths of the two `logs` and of `undo` before it.\n\n"
             "Twin: TimedRunner.execute_tuples.");

static PyObject *
fold_cells(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Cells cells;
    Fields of;
    if (count != 15 || !PyList_CheckExact(args[0]) || !PyTuple_Check(args[2]) || !PyDict_CheckExact(args[3]) || !PyList_Check(args[4]) ||
        !PyAnySet_Check(args[5]) || !PyType_Check(args[11]) || !PyTuple_Check(args[12]) || PyTuple_GET_SIZE(args[12]) != 2 ||
        !PyList_Check(PyTuple_GET_ITEM(args[12], 0)) || !PyList_Check(PyTuple_GET_ITEM(args[12], 1)) || !PyList_Check(args[13]) ||
        !PyList_Check(args[14])) {
        PyErr_SetString(PyExc_TypeError, "fold_cells takes a list of rows, a place, cells, a dict, a list and a set");
        return NULL;
    }
    Py_ssize_t at = PyLong_AsSsize_t(args[1]);
    if (at < 0 || !PyArg_ParseTuple(args[2], "nO!LLL", &cells.time_at, &PyTuple_Type, &cells.key_at, &cells.length, &cells.floor, &cells.last)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "fold_cells: a place is 0 or more");
        return NULL;
    }
    if (cells.length <= 0 || cells.floor < 0 || cells.time_at < 0) {
        PyErr_SetString(PyExc_ValueError, "fold_cells: a length is positive, a time and a place 0 or more");
        return NULL;
    }
    PyObject *rows = args[0], *data = args[3], *undo = args[4], *initial = args[6], *fold = args[7], *normalise = args[8];
    PyObject *check_key = args[9], *missing = args[10], *lists[3] = {PyTuple_GET_ITEM(args[12], 0), PyTuple_GET_ITEM(args[12], 1), undo};
    PyTypeObject *type = (PyTypeObject *)args[11];
    int takes_scalars = PySet_GET_SIZE(args[5]) > 0;
    if (take_fields(args[11], &of) < 0)
        return NULL;
    PyObject *mark = PyUnicode_InternFromString("a"), *tuple = NULL, *start = NULL, *source = NULL;
    long long start_ms = -1;
    int failed = mark == NULL;
    /* A fold may change the list: each row is looked at when its turn comes. */
    for (; !failed && at < PyList_GET_SIZE(rows); at++) {
        PyObject *row = PyList_GET_ITEM(rows, at), *value = NULL;
        if (!PyTuple_CheckExact(row) || PyTuple_GET_SIZE(row) != 3)
            break;
        if (source == NULL)
            source = Py_NewRef(PyTuple_GET_ITEM(row, 2));
        if (PyTuple_GET_ITEM(row, 2) != source)
            break;
        Py_INCREF(row);
        PyObject *key = cell_key(PyTuple_GET_ITEM(row, 0), &cells, mark, &start, &start_ms);
        Py_hash_t hash = key == NULL ? -1 : PyObject_Hash(key);
        if (hash == -1) {
            failed = PyErr_Occurred() != NULL;
            Py_XDECREF(key);
            Py_DECREF(row);
            break;
        }
        if (tuple == NULL || Py_REFCNT(tuple) != 1) { /* user code keeps the last one */
            Py_XDECREF(tuple);
            tuple = type->tp_alloc(type, 0);
        }
        Py_ssize_t lengths[3];
        for (int n = 0; n < 3; n++)
            lengths[n] = PyList_GET_SIZE(lists[n]);
        PyObject *former = Py_XNewRef(_PyDict_GetItem_KnownHash(data, key, hash)), *begin = NULL;
        if (tuple != NULL && !PyErr_Occurred()) {
            set_slot(tuple, of.values, PyTuple_GET_ITEM(row, 0));
            set_slot(tuple, of.roots, PyTuple_GET_ITEM(row, 1));
            set_slot(tuple, of.source, source);
            if (former != NULL)
                begin = is_scalar(former) ? Py_NewRef(former) : PyObject_CallOneArg(normalise, former);
            else {
                PyObject *checked = takes_scalars && is_plain_key(key) ? Py_NewRef(Py_None) : PyObject_CallOneArg(check_key, key);
                if (checked != NULL)
                    begin = PyObject_CallNoArgs(initial);
                Py_XDECREF(checked);
            }
        }
        if (begin != NULL) {
            PyObject *call[3] = {NULL, begin, tuple};
            value = PyObject_Vectorcall(fold, call + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        }
        /* An accumulator that the fold hands back as it was is not put again. */
        int is_kept = value != NULL && former != NULL && value == begin && is_unchanged(former, begin, 8);
        if (value != NULL && !is_kept && !(takes_scalars && is_scalar(value)))
            Py_SETREF(value, PyObject_CallOneArg(normalise, value));
        failed = value == NULL;
        if (!failed && !is_kept)
            failed = PyList_Append(undo, key) < 0 || PyList_Append(undo, former == NULL ? missing : former) < 0 ||
                     PyList_Append(undo, value) < 0 || _PyDict_SetItem_KnownHash(data, key, value, hash) < 0 ||
                     (former == NULL && PyList_Append(args[14], key) < 0);
        if (failed) {
            PyObject *kind, *error, *trace, *places[4] = {PyLong_FromSsize_t(at), NULL, NULL, NULL};
            PyErr_Fetch(&kind, &error, &trace);
            for (int n = 0; n < 3; n++)
                places[n + 1] = PyLong_FromSsize_t(lengths[n]);
            int lost = 0;
            for (int n = 0; n < 4; n++)
                lost = lost || places[n] == NULL || PyList_SetItem(args[13], n, places[n]) < 0;
            if (lost) {
                Py_XDECREF(kind);
                Py_XDECREF(error);
                Py_XDECREF(trace);
            } else
                PyErr_Restore(kind, error, trace);
        }
        Py_XDECREF(begin);
        Py_XDECREF(former);
        Py_XDECREF(value);
        Py_DECREF(key);
        Py_DECREF(row);
    }
    Py_XDECREF(mark);
    Py_XDECREF(tuple);
    Py_XDECREF(start);
    Py_XDECREF(source);
    return failed || PyErr_Occurred() ? NULL : PyLong_FromSsize_t(at);
}

/* ---- lists that are filled again; twins: list.clear and slices ---- */

/* Items for which an emptied list keeps its memory, 512 kB: an epoch of 21,000 changes to a state. Half of it would be outgrown by
   usual epochs, which then fill new pages; double is kept for each task and receiver. */
enum { MOST_KEPT = 1 << 16 };

static void
empty_list(PyObject *list)
{
    if (((PyListObject *)list)->allocated > MOST_KEPT)
        PyList_SetSlice(list, 0, PyList_GET_SIZE(list), NULL); /* gives its memory back */
    else
        cut_list(list, 0);
}

PyDoc_STRVAR(empty_doc, "empty(list): remove all items and keep the memory, unless it is large. Twin: list.clear.");

static PyObject *
empty(PyObject *module, PyObject *list)
{
    if (!PyList_CheckExact(list)) {
        PyErr_SetString(PyExc_TypeError, "empty takes a list");
        return NULL;
    }
    empty_list(list);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(move_doc, "move(list): a new list of its items, of which it keeps none. Twin: _move of common/model/compiled.py.");

static PyObject *
move(PyObject *module, PyObject *list)
{
    if (!PyList_CheckExact(list)) {
        PyErr_SetString(PyExc_TypeError, "move takes a list");
        return NULL;
    }
    for (;;) {
        Py_ssize_t size = PyList_GET_SIZE(list);
        PyObject *moved = PyList_New(size); /* a collection in here may run code that changes the list */
        if (moved == NULL || size == 0)
            return moved;
        if (PyList_GET_SIZE(list) == size) {
            memcpy(((PyListObject *)moved)->ob_item, ((PyListObject *)list)->ob_item, size * sizeof(PyObject *));
            Py_SET_SIZE(list, 0);
            empty_list(list);
            return moved;
        }
        Py_DECREF(moved);
    }
}

PyDoc_STRVAR(last_values_doc,
             "last_values(undo, kinds, found): put the last value of each key of a log (key, former value, value, key, ...) into a dict, which is\n"
             "returned, and empty the log; None, with the log as it was and `found` filled in part, where a key, or a part of a tuple, is of\n"
             "none of these types. Twin: MemoryState._put_last_values.");

/* Whether a key is of one of these types, and so are its parts; -1 with an error. */
static int
is_of_kinds(PyObject *key, PyObject *kinds)
{
    int found = PySet_Contains(kinds, (PyObject *)Py_TYPE(key));
    for (Py_ssize_t n = 0; found == 1 && PyTuple_CheckExact(key) && n < PyTuple_GET_SIZE(key); n++)
        found = PySet_Contains(kinds, (PyObject *)Py_TYPE(PyTuple_GET_ITEM(key, n)));
    return found;
}

static PyObject *
last_values(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3 || !PyList_CheckExact(args[0]) || !PyAnySet_Check(args[1]) || PyList_GET_SIZE(args[0]) % 3 != 0 ||
        !PyDict_CheckExact(args[2])) {
        PyErr_SetString(PyExc_TypeError, "last_values takes a list of keys with two values each, a set and a dict");
        return NULL;
    }
    PyObject *undo = args[0], *found = Py_NewRef(args[2]);
    PyTypeObject *known = NULL; /* most keys of a state are of one type */
    for (Py_ssize_t at = 0; found != NULL && at + 2 < PyList_GET_SIZE(undo); at += 3) {
        PyObject *key = Py_NewRef(PyList_GET_ITEM(undo, at)), *value = Py_NewRef(PyList_GET_ITEM(undo, at + 2));
        int is_plain = Py_TYPE(key) == known ? 1 : is_of_kinds(key, args[1]);
        if (is_plain == 1 && PyDict_SetItem(found, key, value) < 0)
            is_plain = -1;
        known = PyTuple_CheckExact(key) ? NULL : Py_TYPE(key);
        Py_DECREF(key);
        Py_DECREF(value);
        if (is_plain != 1) {
            Py_DECREF(found);
            if (is_plain < 0)
                return NULL;
            Py_RETURN_NONE;
        }
    }
    if (found != NULL)
        empty_list(undo);
    return found;
}

/* ---- weigh: memory of packed values once unpacked; weights and twin in values/unfolding.py ---- */

enum { PLAIN = 10, NUMBER = 40, WIDE = 56, TEXT = 80, LIST = 88, MAPPING = 184, PAIR = 68, EXTENSION = 256, ELEMENT = 128 };
enum { MOST_EXTENSIONS = 64 };
enum { SET = 6, FROZEN_SET = 7, WIDE_MAPPING = 9 }; /* codes of value_types.py */
enum { BYTES, STRINGS, LISTS, MAPPINGS, EXTENSIONS };

/* Bytes of each character of a text, after its highest byte of UTF-8. */
static int
width_of(const unsigned char *text, Py_ssize_t size)
{
    unsigned char most = 0;
    for (Py_ssize_t at = 0; at < size; at++)
        most = text[at] > most ? text[at] : most;
    return most < 0xC4 ? 1 : most < 0xF0 ? 2 : 4;
}

static unsigned long long
weigh_bytes(const unsigned char *data, Py_ssize_t stop, unsigned long long most)
{
    unsigned long long found = 0;
    Py_ssize_t at = 0, outer[MOST_EXTENSIONS]; /* ends of what the extensions at hand lie in */
    int depth = 0, opens = 0; /* whether an extension with elements begins here */
    for (;;) {
        while (depth > 0 && at >= stop)
            stop = outer[--depth];
        if (at >= stop || found > most)
            return found;
        unsigned char first = data[at++];
        int kind, size = 0, has_elements = opens; /* size: of the length */
        opens = 0;
        Py_ssize_t length = 0, left = stop - at;
        if (first < 0x80 || first >= 0xE0) {
            found += first >= 0xE0 && first < 0xFB ? NUMBER : PLAIN;
            continue;
        }
        if (first < 0xC0) {
            kind = first < 0x90 ? MAPPINGS : first < 0xA0 ? LISTS : STRINGS;
            length = first & (kind == STRINGS ? 31 : 15);
        } else if (first >= 0xD4 && first < 0xD9) {
            kind = EXTENSIONS;
            length = (Py_ssize_t)1 << (first - 0xD4);
        } else if (first >= 0xCA && first < 0xD4) {
            Py_ssize_t fixed = first < 0xCC ? (Py_ssize_t)4 << (first - 0xCA) : (Py_ssize_t)1 << (first & 3);
            found += first == 0xCC ? PLAIN : first == 0xCF || first == 0xD3 ? WIDE : NUMBER;
            at += fixed < left ? fixed : left;
            continue;
        } else if (first >= 0xC4 && first < 0xCA) {
            kind = first < 0xC7 ? BYTES : EXTENSIONS;
            size = 1 << (first - (first < 0xC7 ? 0xC4 : 0xC7));
        } else if (first >= 0xD9) {
            kind = first < 0xDC ? STRINGS : first < 0xDE ? LISTS : MAPPINGS;
            size = first < 0xDC ? 1 << (first - 0xD9) : 2 << (first & 1);
        } else {
            found += PLAIN;
            continue;
        }
        if (size > left) {
            at = stop;
            continue;
        }
        for (; size > 0; size--, left--)
            length = length << 8 | data[at++];
        switch (kind) {
        case LISTS:
            found += LIST;
            if (has_elements)
                found += ELEMENT * (unsigned long long)(length < left ? length : left);
            break;
        case MAPPINGS:
            length = length < left / 2 ? length : left / 2;
            found += length > 0 ? MAPPING + PAIR * (unsigned long long)length : LIST;
            break;
        case EXTENSIONS:
            if (left == 0) /* its code is missing */
                break;
            found += EXTENSION;
            opens = data[at] == SET || data[at] == FROZEN_SET || data[at] == WIDE_MAPPING;
            at++;
            left--;
            if (depth < MOST_EXTENSIONS) {
                outer[depth++] = stop;
                stop = at + (length < left ? length : left);
            }
            break;
        default:
            length = length < left ? length : left;
            if (length == 0)
                found += PLAIN;
            else
                found += TEXT + (unsigned long long)length * (kind == BYTES ? 1 : width_of(data + at, length));
            at += length;
        }
    }
}

PyDoc_STRVAR(weigh_doc,
             "weigh(data, most, /)\n--\n\nReturn the bytes of memory that packed values take once unpacked, or the first sum above "
             "`most`; damaged bytes weigh nothing.");

static PyObject *
weigh(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Py_buffer data;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "weigh takes bytes and a number");
        return NULL;
    }
    long long most = PyLong_AsLongLong(args[1]);
    if (most < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "weigh takes a number that is not negative");
        return NULL;
    }
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    unsigned long long found = weigh_bytes(data.buf, data.len, (unsigned long long)most);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLongLong(found);
}

extern PyMethodDef extensions_functions[]; /* _extensions.c */
extern int import_dates(void);
extern PyMethodDef frames_functions[]; /* _frames.c */
extern PyMethodDef hash_functions[];   /* _hash.c */
extern PyMethodDef msgpack_functions[]; /* _msgpack.c */
extern PyMethodDef values_functions[]; /* _values.c */

static PyMethodDef functions[] = {
    {"run_values", (PyCFunction)(void (*)(void))run_values, METH_FASTCALL, run_values_doc},
    {"run_rows", (PyCFunction)(void (*)(void))run_rows, METH_FASTCALL, run_rows_doc},
    {"are_immutable", (PyCFunction)(void (*)(void))are_immutable, METH_FASTCALL, are_immutable_doc},
    {"fold_cells", (PyCFunction)(void (*)(void))fold_cells, METH_FASTCALL, fold_cells_doc},
    {"run_tuples", (PyCFunction)(void (*)(void))run_tuples, METH_FASTCALL, run_tuples_doc},
    {"tuples", (PyCFunction)(void (*)(void))tuples, METH_FASTCALL, tuples_doc},
    {"emit_rows", (PyCFunction)(void (*)(void))emit_rows, METH_FASTCALL, emit_rows_doc},
    {"set_reading", set_reading, METH_VARARGS, set_reading_doc},
    {"empty", empty, METH_O, empty_doc},
    {"move", move, METH_O, move_doc},
    {"last_values", (PyCFunction)(void (*)(void))last_values, METH_FASTCALL, last_values_doc},
    {"weigh", (PyCFunction)(void (*)(void))weigh, METH_FASTCALL, weigh_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "sparkstorm.common.model._core",
    .m_doc = "Compiled core of the row path; see common/model/compiled.py.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC
PyInit__core(void)
{
    PyObject *module = PyModule_Create(&definition);
    one = PyLong_FromLong(1);
    if (module == NULL || one == NULL || PyModule_AddType(module, &PickType) < 0 || PyModule_AddType(module, &TimedPickType) < 0 ||
        PyModule_AddType(module, &EmitType) < 0 || PyModule_AddType(module, &SpoutEmitType) < 0 || PyModule_AddType(module, &ReaderType) < 0 ||
        PyModule_AddType(module, &AnchoredEmitType) < 0 || PyModule_AddType(module, &AckType) < 0 ||
        PyModule_AddType(module, &StateMethodType) < 0 || PyModule_AddIntConstant(module, "VERSION", CORE_VERSION) < 0 ||
        import_dates() < 0 || PyModule_AddFunctions(module, extensions_functions) < 0 ||
        PyModule_AddFunctions(module, frames_functions) < 0 || PyModule_AddFunctions(module, hash_functions) < 0 ||
        PyModule_AddFunctions(module, msgpack_functions) < 0 ||
        PyModule_AddFunctions(module, values_functions) < 0)
        return NULL;
    return module;
}

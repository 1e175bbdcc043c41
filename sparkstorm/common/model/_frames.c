/* Columns of frames: rows to columns, senders, runs of roots and back; the twins are in data_plane/transport/frames.py, but fold's.

   What is not the usual case (None is returned), the twins do, so that checks and errors exist once. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* The root under which an acker tracks this one; twin: tracked of common/model/roots.py. */
static inline long long
tracked_of(long long root)
{
    return root >> 61 == 1 ? root & ~1023LL : root;
}

/* A root of a row; -1 with an error. */
static long long
root_of(PyObject *root)
{
    long long number = PyLong_CheckExact(root) ? PyLong_AsLongLong(root) : -1;
    if (number < 0 && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a root is no whole number from 0 on");
    return number;
}

/* ---- the last row of each root, in the order of the first ones ---- */

enum { FEW_ROOTS = 32 };

typedef struct {
    long long *roots;
    Py_ssize_t *places;
    uint32_t *index; /* of a root's place in these, from 1 on; twice as many as there is room for */
    size_t mask;     /* of an index */
    Py_ssize_t count, room, at; /* at: of the root that came last */
    long long few_roots[FEW_ROOTS];
    Py_ssize_t few_places[FEW_ROOTS];
    uint32_t few_index[2 * FEW_ROOTS];
} LastRows;

static void
begin_rows(LastRows *of)
{
    of->roots = of->few_roots;
    of->places = of->few_places;
    of->index = of->few_index;
    of->mask = 2 * FEW_ROOTS - 1;
    of->count = of->at = 0;
    of->room = FEW_ROOTS;
    memset(of->few_index, 0, sizeof of->few_index);
}

static void
end_rows(LastRows *of)
{
    if (of->roots == of->few_roots)
        return;
    PyMem_Free(of->roots);
    PyMem_Free(of->places);
    PyMem_Free(of->index);
}

/* Where the index has a root, or has room for it. */
static inline size_t
place_in_index(const LastRows *of, long long root)
{
    size_t at = (size_t)((unsigned long long)root * 0x9E3779B97F4A7C15ULL >> 32) & of->mask;
    while (of->index[at] != 0 && of->roots[of->index[at] - 1] != root)
        at = (at + 1) & of->mask;
    return at;
}

static int
make_room(LastRows *of)
{
    Py_ssize_t room = 4 * of->room;
    long long *roots = PyMem_Malloc(room * sizeof *roots);
    Py_ssize_t *places = PyMem_Malloc(room * sizeof *places);
    uint32_t *index = PyMem_Calloc(2 * room, sizeof *index);
    if (roots == NULL || places == NULL || index == NULL) {
        PyMem_Free(roots);
        PyMem_Free(places);
        PyMem_Free(index);
        PyErr_NoMemory();
        return -1;
    }
    memcpy(roots, of->roots, of->count * sizeof *roots);
    memcpy(places, of->places, of->count * sizeof *places);
    end_rows(of);
    of->roots = roots;
    of->places = places;
    of->index = index;
    of->mask = 2 * room - 1;
    of->room = room;
    for (Py_ssize_t n = 0; n < of->count; n++)
        index[place_in_index(of, roots[n])] = (uint32_t)n + 1;
    return 0;
}

static inline int
note_row(LastRows *of, long long root, Py_ssize_t place)
{
    if (of->count > 0 && of->roots[of->at] == root) { /* most neighbours are of one batch */
        of->places[of->at] = place;
        return 0;
    }
    size_t at = place_in_index(of, root);
    if (of->index[at] == 0) {
        if (of->count == of->room) {
            if (make_room(of) < 0)
                return -1;
            at = place_in_index(of, root);
        }
        of->roots[of->count] = root;
        of->index[at] = (uint32_t)++of->count;
    }
    of->at = of->index[at] - 1;
    of->places[of->at] = place;
    return 0;
}

static PyObject *
found_rows(const LastRows *of)
{
    PyObject *found = PyDict_New();
    for (Py_ssize_t n = 0; found != NULL && n < of->count; n++) {
        PyObject *root = PyLong_FromLongLong(of->roots[n]), *place = PyLong_FromSsize_t(of->places[n]);
        if (root == NULL || place == NULL || PyDict_SetItem(found, root, place) < 0)
            Py_CLEAR(found);
        Py_XDECREF(root);
        Py_XDECREF(place);
    }
    return found;
}

PyDoc_STRVAR(last_rows_doc, "last_rows(roots, lengths): the place of the last row of each tracked root, of runs of rows.\n\n"
                            "Twin: RootRuns of data_plane/transport/frames.py.");

static PyObject *
last_rows(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "last_rows takes roots and lengths");
        return NULL;
    }
    PyObject *roots = PySequence_Fast(args[0], "roots are a sequence"), *found = NULL;
    PyObject *lengths = roots == NULL ? NULL : PySequence_Fast(args[1], "lengths are a sequence");
    Py_ssize_t stop = 0;
    LastRows rows;
    begin_rows(&rows);
    if (roots == NULL || lengths == NULL)
        goto done;
    if (PySequence_Fast_GET_SIZE(roots) != PySequence_Fast_GET_SIZE(lengths)) {
        PyErr_SetString(PyExc_ValueError, "roots and lengths of different runs");
        goto done;
    }
    for (Py_ssize_t at = 0; at < PySequence_Fast_GET_SIZE(roots); at++) {
        PyObject *of_run = PySequence_Fast_GET_ITEM(roots, at);
        Py_ssize_t length = PyLong_AsSsize_t(PySequence_Fast_GET_ITEM(lengths, at));
        if (length < 0 || length > PY_SSIZE_T_MAX - stop) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "a run of no length that rows have");
            goto done;
        }
        stop += length;
        int is_one = !PyTuple_CheckExact(of_run);
        for (Py_ssize_t each = 0; each < (is_one ? 1 : PyTuple_GET_SIZE(of_run)); each++) {
            long long root = root_of(is_one ? of_run : PyTuple_GET_ITEM(of_run, each));
            if (root < 0 || (root > 0 && note_row(&rows, tracked_of(root), stop - 1) < 0))
                goto done;
        }
    }
    found = found_rows(&rows);
done:
    end_rows(&rows);
    Py_XDECREF(roots);
    Py_XDECREF(lengths);
    return found;
}

/* ---- roots of rows as columns, and back ---- */

PyDoc_STRVAR(pack_roots_doc,
             "pack_roots(roots): columns of the runs of rows' roots and of their lengths (none: each is one row), and the place of the last\n"
             "row of each tracked root; None where a row has several. Twin: _packed_roots of data_plane/transport/frames.py.");

static PyObject *
pack_roots(PyObject *module, PyObject *roots)
{
    Py_ssize_t count = PyList_CheckExact(roots) ? PyList_GET_SIZE(roots) : 0, changes = 0, run = 0;
    if (PY_BIG_ENDIAN || count == 0)
        Py_RETURN_NONE;
    PyObject *column = PyBytes_FromStringAndSize(NULL, 8 * count), *lengths = NULL, *found = NULL;
    if (column == NULL)
        return NULL;
    char *data = PyBytes_AS_STRING(column);
    int is_usual = 1, failed = 0;
    long long former = 0, number = 0;
    LastRows rows;
    begin_rows(&rows);
    for (Py_ssize_t at = 0; at < count && is_usual && !failed; at++, former = number) {
        PyObject *root = PyList_GET_ITEM(roots, at);
        int overflow = 0;
        number = PyLong_CheckExact(root) ? PyLong_AsLongLongAndOverflow(root, &overflow) : -1;
        is_usual = number >= 0; /* an overflow gives -1 */
        changes += at > 0 && number != former;
        memcpy(data + 8 * at, &number, 8);
        failed = number > 0 && note_row(&rows, tracked_of(number), at) < 0;
    }
    if (is_usual && !failed && (4 * changes > 3 * count || changes + 1 == count))
        lengths = PyBytes_FromStringAndSize(NULL, 0);
    else if (is_usual && !failed && (lengths = PyBytes_FromStringAndSize(NULL, 4 * (changes + 1))) != NULL) {
        uint32_t length = 0;
        for (Py_ssize_t at = 0; at < count; at++, length++)
            if (memcmp(data + 8 * at, data + 8 * run, 8) != 0) {
                memcpy(PyBytes_AS_STRING(lengths) + 4 * run, &length, 4);
                run++;
                memcpy(data + 8 * run, data + 8 * at, 8);
                length = 0;
            }
        memcpy(PyBytes_AS_STRING(lengths) + 4 * run, &length, 4);
        (void)_PyBytes_Resize(&column, 8 * (run + 1)); /* NULL when there is no memory */
    }
    PyObject *last = lengths == NULL || column == NULL ? NULL : found_rows(&rows);
    end_rows(&rows);
    if (last != NULL)
        found = PyTuple_Pack(3, column, lengths, last);
    Py_XDECREF(last);
    Py_XDECREF(lengths);
    Py_XDECREF(column);
    if (!is_usual && !failed)
        Py_RETURN_NONE;
    return found;
}

PyDoc_STRVAR(unpack_roots_doc,
             "unpack_roots(column, lengths, count): the roots of runs, their lengths and the roots of rows; None where a column is not what it\n"
             "should be. Twin: _checked_roots of data_plane/transport/frames.py.");

static PyObject *
unpack_roots(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 3 || !PyLong_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "unpack_roots takes two columns and a number of rows");
        return NULL;
    }
    Py_ssize_t count = PyLong_AsSsize_t(args[2]), row = 0;
    if (count == -1 && PyErr_Occurred())
        return NULL;
    if (PY_BIG_ENDIAN || !PyBytes_CheckExact(args[0]) || !PyBytes_CheckExact(args[1]) || PyBytes_GET_SIZE(args[0]) % 8 != 0)
        Py_RETURN_NONE;
    Py_ssize_t size = PyBytes_GET_SIZE(args[0]) / 8;
    int are_single = PyBytes_GET_SIZE(args[1]) == 0;
    const char *column = PyBytes_AS_STRING(args[0]), *sizes = PyBytes_AS_STRING(args[1]);
    if (are_single ? size != count : PyBytes_GET_SIZE(args[1]) != 4 * size)
        Py_RETURN_NONE;
    Py_ssize_t sum = are_single ? size : 0;
    for (Py_ssize_t at = 0; at < size; at++) {
        long long root;
        uint32_t length = 1;
        memcpy(&root, column + 8 * at, 8);
        if (!are_single) {
            memcpy(&length, sizes + 4 * at, 4);
            sum += length;
        }
        if (root < 0 || length == 0 || sum > count)
            Py_RETURN_NONE;
    }
    if (sum != count)
        Py_RETURN_NONE;
    PyObject *runs = PyList_New(size), *lengths = PyList_New(size), *rows = are_single ? Py_XNewRef(runs) : PyList_New(count);
    int failed = runs == NULL || lengths == NULL || rows == NULL;
    for (Py_ssize_t at = 0; at < size && !failed; at++) {
        long long root;
        uint32_t length = 1;
        memcpy(&root, column + 8 * at, 8);
        if (!are_single)
            memcpy(&length, sizes + 4 * at, 4);
        PyObject *of_run = PyLong_FromLongLong(root), *of_length = PyLong_FromUnsignedLong(length);
        if ((failed = of_run == NULL || of_length == NULL)) {
            Py_XDECREF(of_run);
            Py_XDECREF(of_length);
            break;
        }
        PyList_SET_ITEM(runs, at, of_run);
        PyList_SET_ITEM(lengths, at, of_length);
        for (uint32_t each = 0; !are_single && each < length; each++)
            PyList_SET_ITEM(rows, row++, Py_NewRef(of_run));
    }
    PyObject *found = failed ? NULL : PyTuple_Pack(3, runs, lengths, rows);
    Py_XDECREF(runs);
    Py_XDECREF(lengths);
    Py_XDECREF(rows);
    return found;
}

/* ---- rows as columns, and their senders ---- */

enum { SEEN = 64, MOST_SENDERS = 1 << 16 };

typedef struct {
    PyObject *tasks;   /* in the order of their first rows */
    PyObject *by_task; /* numbers of these */
    PyObject *seen[SEEN];
    uint16_t number_of[SEEN];
    uint16_t *numbers; /* of each row; NULL: all are 0 so far */
} Senders;

/* The number of a source's task; -1 where the twin must look, or with an error. */
static long
number_of(Senders *of, PyObject *source)
{
    size_t at = ((size_t)source >> 5) % SEEN;
    if (of->seen[at] == source)
        return of->number_of[at];
    PyObject *task = PyObject_GetAttrString(source, "task");
    if (task == NULL || !PyLong_CheckExact(task)) {
        Py_XDECREF(task);
        return -1;
    }
    PyObject *found = PyDict_GetItemWithError(of->by_task, task);
    long number = found != NULL ? PyLong_AsLong(found) : PyErr_Occurred() ? -1 : (long)PyList_GET_SIZE(of->tasks);
    if (found == NULL && number >= 0 && number < MOST_SENDERS) {
        PyObject *made = PyLong_FromLong(number);
        if (made == NULL || PyDict_SetItem(of->by_task, task, made) < 0 || PyList_Append(of->tasks, task) < 0)
            number = -1;
        Py_XDECREF(made);
    }
    Py_DECREF(task);
    if (number < 0 || number >= MOST_SENDERS)
        return -1;
    of->seen[at] = source; /* borrowed: its row has it */
    of->number_of[at] = (uint16_t)number;
    return number;
}

/* One byte a row, or two from 257 senders on; none for one sender. */
static PyObject *
packed_numbers(const Senders *of, Py_ssize_t count)
{
    Py_ssize_t size = PyList_GET_SIZE(of->tasks), width = size <= 256 ? 1 : 2;
    PyObject *found = PyBytes_FromStringAndSize(NULL, size == 1 ? 0 : width * count);
    if (found == NULL || size == 1)
        return found;
    unsigned char *data = (unsigned char *)PyBytes_AS_STRING(found);
    for (Py_ssize_t at = 0; at < count; at++) {
        *data++ = (unsigned char)of->numbers[at];
        if (width == 2)
            *data++ = (unsigned char)(of->numbers[at] >> 8);
    }
    return found;
}

PyDoc_STRVAR(split_doc,
             "split(rows): a list per field, the roots, the tasks that sent the rows, and the number of each row's among them (none: there is\n"
             "one); None for rows of several widths. Twin: encode_rows of data_plane/transport/frames.py.");

/* Fill the columns; 0 where the twin must look, -1 with an error. */
static int
fill_columns(PyObject *rows, PyObject *columns, PyObject *roots, Senders *senders)
{
    Py_ssize_t count = PyTuple_GET_SIZE(rows), width = PyList_GET_SIZE(columns);
    PyObject *former = NULL;
    long number = 0;
    for (Py_ssize_t at = 0; at < count; at++) {
        PyObject *row = PyTuple_GET_ITEM(rows, at), *values = NULL;
        if (PyTuple_CheckExact(row) && PyTuple_GET_SIZE(row) == 3)
            values = PyTuple_GET_ITEM(row, 0);
        if (values == NULL || !PyTuple_CheckExact(values) || PyTuple_GET_SIZE(values) != width)
            return 0;
        PyObject *source = PyTuple_GET_ITEM(row, 2);
        if (source != former && (number = number_of(senders, former = source)) < 0)
            return PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_AttributeError) ? -1 : 0;
        if (number > 0 && senders->numbers == NULL && (senders->numbers = PyMem_Calloc(count, sizeof *senders->numbers)) == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        if (senders->numbers != NULL)
            senders->numbers[at] = (uint16_t)number;
        for (Py_ssize_t field = 0; field < width; field++)
            PyList_SET_ITEM(PyList_GET_ITEM(columns, field), at, Py_NewRef(PyTuple_GET_ITEM(values, field)));
        PyList_SET_ITEM(roots, at, Py_NewRef(PyTuple_GET_ITEM(row, 1)));
    }
    return 1;
}

static PyObject *
lists(Py_ssize_t width, Py_ssize_t size)
{
    PyObject *found = PyList_New(width);
    for (Py_ssize_t at = 0; found != NULL && at < width; at++) {
        PyObject *each = PyList_New(size);
        if (each == NULL)
            Py_CLEAR(found);
        else
            PyList_SET_ITEM(found, at, each);
    }
    return found;
}

static PyObject *
split(PyObject *module, PyObject *given)
{
    PyObject *row = PyList_CheckExact(given) && PyList_GET_SIZE(given) > 0 ? PyList_GET_ITEM(given, 0) : NULL;
    if (row == NULL || !PyTuple_CheckExact(row) || PyTuple_GET_SIZE(row) != 3 || !PyTuple_CheckExact(PyTuple_GET_ITEM(row, 0)))
        Py_RETURN_NONE;
    Py_ssize_t width = PyTuple_GET_SIZE(PyTuple_GET_ITEM(row, 0));
    PyObject *rows = PyList_AsTuple(given); /* a collection may run code that changes the list */
    Py_ssize_t count = rows == NULL ? 0 : PyTuple_GET_SIZE(rows);
    Senders senders = {.tasks = PyList_New(0), .by_task = PyDict_New()};
    PyObject *columns = lists(width, count), *roots = PyList_New(count), *found = NULL;
    int is_done = -1;
    if (rows != NULL && senders.tasks != NULL && senders.by_task != NULL && columns != NULL && roots != NULL)
        is_done = fill_columns(rows, columns, roots, &senders);
    if (is_done == 1) {
        PyObject *numbers = packed_numbers(&senders, count);
        if (numbers != NULL)
            found = PyTuple_Pack(4, columns, roots, senders.tasks, numbers);
        Py_XDECREF(numbers);
    }
    PyMem_Free(senders.numbers);
    Py_XDECREF(senders.tasks);
    Py_XDECREF(senders.by_task);
    Py_XDECREF(columns);
    Py_XDECREF(roots);
    Py_XDECREF(rows);
    if (is_done == 0) {
        PyErr_Clear(); /* the twin raises it again */
        Py_RETURN_NONE;
    }
    return found;
}

PyDoc_STRVAR(senders_doc, "senders(sources): the tasks of rows' sources, and the number of each row's among them (none: there is one); None\n"
                          "where the twin must look: _senders_of of data_plane/transport/frames.py.");

static PyObject *
senders(PyObject *module, PyObject *sources)
{
    Py_ssize_t count = PyList_CheckExact(sources) ? PyList_GET_SIZE(sources) : 0;
    if (count == 0)
        Py_RETURN_NONE;
    Senders of = {.tasks = PyList_New(0), .by_task = PyDict_New(), .numbers = PyMem_Calloc(count, sizeof *of.numbers)};
    PyObject *numbers = NULL, *found = NULL, *former = NULL;
    long number = of.tasks == NULL || of.by_task == NULL || of.numbers == NULL ? -1 : 0;
    for (Py_ssize_t at = 0; at < count && number >= 0; at++) {
        PyObject *source = PyList_GET_ITEM(sources, at);
        if (source != former)
            number = number_of(&of, former = source);
        of.numbers[at] = (uint16_t)number;
    }
    if (number >= 0 && (numbers = packed_numbers(&of, count)) != NULL)
        found = PyTuple_Pack(2, of.tasks, numbers);
    PyMem_Free(of.numbers);
    Py_XDECREF(of.tasks);
    Py_XDECREF(of.by_task);
    Py_XDECREF(numbers);
    if (found == NULL && number < 0) {
        PyErr_Clear(); /* the twin raises it again */
        Py_RETURN_NONE;
    }
    return found;
}

PyDoc_STRVAR(join_doc,
             "join(values, roots, sources, numbers, start, stop): rows from a place to before another; `numbers` of their sources, none\n"
             "when there is one. Twin: _join_plainly of data_plane/worker/tasks/inbox.py.");

/* A row's number of its source; -1 with an error. */
static Py_ssize_t
source_at(PyObject *numbers, Py_ssize_t at)
{
    if (PyBytes_CheckExact(numbers))
        return PyBytes_GET_SIZE(numbers) == 0 ? 0 : (unsigned char)PyBytes_AS_STRING(numbers)[at];
    Py_ssize_t number = PyList_GET_SIZE(numbers) == 0 ? 0 : PyLong_AsSsize_t(PyList_GET_ITEM(numbers, at));
    if (number < 0 && !PyErr_Occurred())
        PyErr_SetString(PyExc_IndexError, "a source below the first");
    return number;
}

static PyObject *
join(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    Py_ssize_t size = given == 6 && PyList_CheckExact(args[0]) ? PyList_GET_SIZE(args[0]) : -1;
    if (size < 0 || !PyList_CheckExact(args[1]) || !PyList_CheckExact(args[2]) || PyList_GET_SIZE(args[1]) != size ||
        !(PyBytes_CheckExact(args[3]) || PyList_CheckExact(args[3])) || (Py_SIZE(args[3]) != 0 && Py_SIZE(args[3]) != size)) {
        PyErr_SetString(PyExc_TypeError, "join takes lists of values and roots of one length, of sources, and numbers of these");
        return NULL;
    }
    Py_ssize_t start = PyLong_AsSsize_t(args[4]), stop = PyLong_AsSsize_t(args[5]);
    if (PyErr_Occurred())
        return NULL;
    if (start < 0 || stop < start || stop > size) {
        PyErr_SetString(PyExc_IndexError, "no such rows");
        return NULL;
    }
    PyObject *values = PyList_GetSlice(args[0], start, stop); /* a collection may run code that changes the lists */
    PyObject *roots = PyList_GetSlice(args[1], start, stop);
    PyObject *found = PyList_New(stop - start);
    for (Py_ssize_t at = 0; values != NULL && roots != NULL && found != NULL && at < stop - start; at++) {
        Py_ssize_t number = Py_SIZE(args[3]) != 0 && start + at >= Py_SIZE(args[3]) ? -1 : source_at(args[3], start + at);
        PyObject *row = NULL;
        if (number >= 0 && number < PyList_GET_SIZE(args[2]))
            row = PyTuple_Pack(3, PyList_GET_ITEM(values, at), PyList_GET_ITEM(roots, at), PyList_GET_ITEM(args[2], number));
        else if (!PyErr_Occurred())
            PyErr_SetString(PyExc_IndexError, "no such source");
        if (row == NULL)
            Py_CLEAR(found);
        else
            PyList_SET_ITEM(found, at, row);
    }
    Py_XDECREF(roots);
    if (values == NULL || roots == NULL)
        Py_CLEAR(found);
    Py_XDECREF(values);
    return found;
}

/* ---- values of roots ---- */

PyDoc_STRVAR(fold_doc, "fold(values, roots, edge): XOR an edge into the value of each root. Twin: Epoch.consume.");

static PyObject *
fold(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3 || !PyDict_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "fold takes a dict, roots and an edge");
        return NULL;
    }
    unsigned long long edge = PyLong_AsUnsignedLongLong(args[2]);
    if (edge == (unsigned long long)-1 && PyErr_Occurred())
        return NULL;
    PyObject *roots = PyObject_GetIter(args[1]), *root;
    if (roots == NULL)
        return NULL;
    while ((root = PyIter_Next(roots)) != NULL) {
        PyObject *former = PyDict_GetItemWithError(args[0], root), *value = NULL;
        if (former == NULL && !PyErr_Occurred())
            value = Py_NewRef(args[2]);
        else if (former != NULL) {
            unsigned long long number = PyLong_AsUnsignedLongLong(former);
            if (number != (unsigned long long)-1 || !PyErr_Occurred())
                value = PyLong_FromUnsignedLongLong(number ^ edge);
        }
        int failed = value == NULL || PyDict_SetItem(args[0], root, value) < 0;
        Py_XDECREF(value);
        Py_DECREF(root);
        if (failed)
            break;
    }
    Py_DECREF(roots);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

PyMethodDef frames_functions[] = {
    {"fold", (PyCFunction)(void (*)(void))fold, METH_FASTCALL, fold_doc},
    {"join", (PyCFunction)(void (*)(void))join, METH_FASTCALL, join_doc},
    {"last_rows", (PyCFunction)(void (*)(void))last_rows, METH_FASTCALL, last_rows_doc},
    {"pack_roots", pack_roots, METH_O, pack_roots_doc},
    {"unpack_roots", (PyCFunction)(void (*)(void))unpack_roots, METH_FASTCALL, unpack_roots_doc},
    {"senders", senders, METH_O, senders_doc},
    {"split", split, METH_O, split_doc},
    {NULL, NULL, 0, NULL},
};

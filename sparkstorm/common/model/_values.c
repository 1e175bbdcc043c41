/* Normalisation of emitted values; the twin is Codec._normalise_plain in common/model/values/codec.py.

   The containers and scalars that msgpack has a form for are copied here; dates, decimals and UUIDs are checked (_extensions.c).
   For everything else `rest(value, depth)` decides: a Codec's method in Python, so that the rules and errors of the other types exist
   once. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define MAX_DEPTH 64 /* _MAX_DEPTH of codec.py; a deeper value is left to `rest`, which refuses it */

int is_plain(PyObject *value); /* this and the next one also for emitted values, in _core.c */
PyObject *normal_of(PyObject *value, PyObject *rest, long depth);
extern int is_exact_value(PyObject *value);                       /* _extensions.c */

/* Whether each receiver reads a scalar as it is: none, true/false, a number of 64 bits, a float, bytes, valid text. */
int
is_plain(PyObject *value)
{
    if (PyUnicode_CheckExact(value)) {
        int kind = PyUnicode_KIND(value);
        if (kind == PyUnicode_1BYTE_KIND)
            return 1; /* surrogates, which UTF-8 has no form for, need two bytes */
        const void *data = PyUnicode_DATA(value);
        for (Py_ssize_t i = 0, size = PyUnicode_GET_LENGTH(value); i < size; i++)
            if (Py_UNICODE_IS_SURROGATE(PyUnicode_READ(kind, data, i)))
                return 0;
        return 1;
    }
    if (PyLong_CheckExact(value)) {
        int overflow;
        (void)PyLong_AsLongLongAndOverflow(value, &overflow);
        return overflow == 0;
    }
    return value == Py_None || PyBool_Check(value) || PyFloat_CheckExact(value) || PyBytes_CheckExact(value);
}

static PyObject *
changed_meanwhile(PyObject *container, PyObject *normal)
{
    Py_XDECREF(normal);
    PyErr_Format(PyExc_RuntimeError, "a %s changed while it was emitted", Py_TYPE(container)->tp_name);
    return NULL;
}

/* `rest` may call a serializer of the user, which may change the list: so each place is read anew. */
static PyObject *
normal_sequence(PyObject *value, PyObject *rest, long depth)
{
    Py_ssize_t size = PySequence_Fast_GET_SIZE(value);
    PyObject *normal = PyList_New(size);
    for (Py_ssize_t i = 0; normal != NULL && i < size; i++) {
        if (PySequence_Fast_GET_SIZE(value) != size)
            return changed_meanwhile(value, normal);
        PyObject *item = PySequence_Fast_GET_ITEM(value, i);
        Py_INCREF(item);
        PyObject *found = normal_of(item, rest, depth + 1);
        Py_DECREF(item);
        if (found == NULL)
            Py_CLEAR(normal);
        else
            PyList_SET_ITEM(normal, i, found);
    }
    return normal;
}

/* The contents of a copy that are no scalars; `rest` may call user code, which may change the mapping that was copied. */
static int
normalise_contents(PyObject *copy, PyObject *value, PyObject *rest, long depth)
{
    PyObject *key, *content;
    Py_ssize_t at = 0, size = PyDict_GET_SIZE(value);
    while (PyDict_Next(copy, &at, &key, &content)) {
        if (is_plain(content))
            continue;
        Py_INCREF(key);
        Py_INCREF(content);
        PyObject *found = normal_of(content, rest, depth + 1);
        /* under a key that is there: the table stays, and so does the place in it */
        int failed = found == NULL || PyDict_SetItem(copy, key, found) < 0;
        Py_XDECREF(found);
        Py_DECREF(content);
        Py_DECREF(key);
        if (failed)
            return -1;
        if (PyDict_GET_SIZE(value) != size) {
            changed_meanwhile(value, NULL);
            return -1;
        }
    }
    return 0;
}

static PyObject *
normal_mapping(PyObject *value, PyObject *rest, long depth)
{
    PyObject *key, *content;
    Py_ssize_t at = 0;
    int is_flat = 1;
    while (PyDict_Next(value, &at, &key, &content)) {
        if (!is_plain(key))
            return PyObject_CallFunction(rest, "Ol", value, depth);
        is_flat = is_flat && is_plain(content);
    }
    /* Its table as a whole. Key by key, in a table that grows, took twice the time. */
    PyObject *normal = PyDict_Copy(value);
    if (normal != NULL && !is_flat && normalise_contents(normal, value, rest, depth) < 0)
        Py_CLEAR(normal);
    return normal;
}

PyObject *
normal_of(PyObject *value, PyObject *rest, long depth)
{
    if (is_plain(value)) {
        Py_INCREF(value);
        return value;
    }
    if (depth <= MAX_DEPTH) {
        if (PyDict_CheckExact(value))
            return normal_mapping(value, rest, depth);
        if (PyList_CheckExact(value) || PyTuple_CheckExact(value))
            return normal_sequence(value, rest, depth);
        int is_exact = is_exact_value(value);
        if (is_exact != 0)
            return is_exact < 0 ? NULL : Py_NewRef(value);
    }
    return PyObject_CallFunction(rest, "Ol", value, depth);
}

/* ---- estimates of sizes; twins: weigh and Emitter.weight of data_plane/executor/emitter.py ---- */

/* Add about how many bytes a value takes in a frame; -1 with an error. */
static int
add_size(PyObject *value, double *sum)
{
    PyTypeObject *type = Py_TYPE(value);
    if (type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type || value == Py_None) {
        *sum += 8;
        return 0;
    }
    if (type == &PyUnicode_Type || type == &PyBytes_Type) {
        *sum += 2 + (double)(type == &PyUnicode_Type ? PyUnicode_GET_LENGTH(value) : PyBytes_GET_SIZE(value));
        return 0;
    }
    if (type == &PyList_Type || type == &PyTuple_Type || type == &PyDict_Type) {
        PyObject *key, *content;
        Py_ssize_t at = 0;
        int is_mapping = type == &PyDict_Type, failed = 0;
        *sum += 2;
        if (Py_EnterRecursiveCall(" while a value is weighed"))
            return -1;
        while (!failed && (is_mapping ? PyDict_Next(value, &at, &key, &content) : at < PySequence_Fast_GET_SIZE(value))) {
            if (!is_mapping)
                content = PySequence_Fast_GET_ITEM(value, at++);
            Py_INCREF(content);
            failed = add_size(content, sum) < 0;
            Py_DECREF(content);
        }
        Py_LeaveRecursiveCall();
        return failed ? -1 : 0;
    }
    PyObject *bytes = PyObject_GetAttrString(value, "nbytes"), *number; /* of a piece of a batch */
    if (bytes == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        *sum += 8;
        return 0;
    }
    number = bytes == NULL ? NULL : PyNumber_Long(bytes);
    Py_XDECREF(bytes);
    if (number != NULL)
        *sum += PyLong_AsDouble(number);
    Py_XDECREF(number);
    return PyErr_Occurred() ? -1 : 0;
}

/* The bytes of rows (values, ...), or of the last rows of lists, by a sample of so many at the most. */
static PyObject *
weight_of(PyObject *const *args, Py_ssize_t given, int is_log)
{
    Py_ssize_t most = given == 2 ? PyLong_AsSsize_t(args[1]) : 0, sampled = 0;
    if (most < 1 || !PyList_CheckExact(args[0])) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "a weight is of a list, by a sample of one or more");
        return NULL;
    }
    Py_ssize_t count = PyList_GET_SIZE(args[0]), step = (count + most - 1) / most;
    double sum = 0; /* exact below 2**53 bytes */
    for (Py_ssize_t at = 0; at < count && at < PyList_GET_SIZE(args[0]); at += step, sampled++) {
        PyObject *row = PyList_GET_ITEM(args[0], at);
        if (is_log && PyList_CheckExact(row) && PyList_GET_SIZE(row) > 0)
            row = PyList_GET_ITEM(row, PyList_GET_SIZE(row) - 1);
        if (!PyTuple_CheckExact(row) || PyTuple_GET_SIZE(row) == 0) {
            PyErr_SetString(PyExc_TypeError, "a row is a tuple that begins with its values");
            return NULL;
        }
        PyObject *values = Py_NewRef(PyTuple_GET_ITEM(row, 0));
        int failed = add_size(values, &sum) < 0;
        Py_DECREF(values);
        if (failed)
            return NULL;
    }
    return PyLong_FromDouble(sampled == 0 ? 0 : sum * (double)count / (double)sampled);
}

PyDoc_STRVAR(weigh_rows_doc, "weigh_rows(rows, most): about how many bytes these rows take, by a sample of so many at the most.");

static PyObject *
weigh_rows(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    return weight_of(args, given, 0);
}

PyDoc_STRVAR(weigh_log_doc, "weigh_log(log, most): the same of an emitter's log, whose lists end with the rows that are weighed.");

static PyObject *
weigh_log(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    return weight_of(args, given, 1);
}

PyDoc_STRVAR(normalise_doc, "normalise(rest, value, depth=0): a value as every receiver reads it; `rest` decides on other types.");

static PyObject *
normalise(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    long depth = 0;
    if (nargs < 2 || nargs > 3) {
        PyErr_SetString(PyExc_TypeError, "normalise takes a callable, a value and a depth");
        return NULL;
    }
    if (nargs == 3 && ((depth = PyLong_AsLong(args[2])) < 0)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "a depth below 0");
        return NULL;
    }
    return normal_of(args[1], args[0], depth);
}

PyMethodDef values_functions[] = {
    {"normalise", (PyCFunction)(void (*)(void))normalise, METH_FASTCALL, normalise_doc},
    {"weigh_rows", (PyCFunction)(void (*)(void))weigh_rows, METH_FASTCALL, weigh_rows_doc},
    {"weigh_log", (PyCFunction)(void (*)(void))weigh_log, METH_FASTCALL, weigh_log_doc},
    {NULL, NULL, 0, NULL},
};

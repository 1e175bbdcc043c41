/* Normalisation of emitted values; the twin is Codec._normalise_plain in model/values/codec.py.

   The containers and scalars that msgpack has a form for are copied here. For everything else `rest(value, depth)` decides:
   a Codec's method in Python, so that the rules and errors of the other types exist once. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define MAX_DEPTH 64 /* _MAX_DEPTH of codec.py; a deeper value is left to `rest`, which refuses it */

PyObject *normal_of(PyObject *value, PyObject *rest, long depth); /* also of emitted values, in _core.c */

/* Whether each receiver reads a scalar as it is: none, true/false, a number of 64 bits, a float, bytes, valid text. */
static int
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

static PyObject *
normal_mapping(PyObject *value, PyObject *rest, long depth)
{
    PyObject *key, *content;
    Py_ssize_t at = 0, size = PyDict_GET_SIZE(value);
    while (PyDict_Next(value, &at, &key, &content))
        if (!is_plain(key))
            return PyObject_CallFunction(rest, "Ol", value, depth);
    PyObject *normal = PyDict_New();
    at = 0;
    while (normal != NULL && PyDict_Next(value, &at, &key, &content)) {
        Py_INCREF(key);
        Py_INCREF(content);
        PyObject *found = normal_of(content, rest, depth + 1);
        if (found == NULL || PyDict_SetItem(normal, key, found) < 0)
            Py_CLEAR(normal);
        Py_XDECREF(found);
        Py_DECREF(content);
        Py_DECREF(key);
        if (normal != NULL && PyDict_GET_SIZE(value) != size)
            return changed_meanwhile(value, normal);
    }
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
    }
    return PyObject_CallFunction(rest, "Ol", value, depth);
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
    {NULL, NULL, 0, NULL},
};

/* Hash of fields grouping: Murmur3 of 32 bits as Spark computes it; the twin is _stable_hash in common/grouping/hashing.py. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define SEED 42u            /* _SEED of hashing.py */
enum { MOST_DEPTH = 16 };   /* lists in lists; deeper ones are left to the twin, which has Python's limit */
static PyObject *plain;     /* the twin, for values that are left to it */

static inline uint32_t
rotated(uint32_t value, int by)
{
    return value << by | value >> (32 - by);
}

static inline uint32_t
mixed(uint32_t state, uint32_t word)
{
    return rotated(state ^ rotated(word * 0xCC9E2D51u, 15) * 0x1B873593u, 13) * 5 + 0xE6546B64u;
}

static inline uint32_t
finished(uint32_t state, uint32_t size)
{
    state ^= size;
    state = (state ^ state >> 16) * 0x85EBCA6Bu;
    state = (state ^ state >> 13) * 0xC2B2AE35u;
    return state ^ state >> 16;
}

static inline uint32_t
hash_long(uint64_t number, uint32_t seed)
{
    return finished(mixed(mixed(seed, (uint32_t)number), (uint32_t)(number >> 32)), 8);
}

static uint32_t
hash_bytes(const char *data, Py_ssize_t size, uint32_t seed)
{
    const unsigned char *at = (const unsigned char *)data, *end = at + size;
    for (; end - at >= 4; at += 4) /* little-endian on every machine; compilers make one load of it */
        seed = mixed(seed, (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
    for (; at < end; at++)
        seed = mixed(seed, (uint32_t)(int32_t)(signed char)*at);
    return finished(seed, (uint32_t)size);
}

/* Take a text into the hash; 0 for one that is no UTF-8. */
static int
add_text(PyObject *text, uint32_t *hash)
{
    if (PyUnicode_IS_COMPACT_ASCII(text)) {
        *hash = hash_bytes((const char *)PyUnicode_1BYTE_DATA(text), PyUnicode_GET_LENGTH(text), *hash);
        return 1;
    }
    /* Not AsUTF8AndSize, which keeps the bytes with the text for as long as that lives. */
    PyObject *bytes = PyUnicode_AsUTF8String(text);
    if (bytes == NULL) {
        PyErr_Clear(); /* a half of a pair of surrogates */
        return 0;
    }
    *hash = hash_bytes(PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes), *hash);
    Py_DECREF(bytes);
    return 1;
}

/* Take a value into the hash. Whether it was taken: else it is left to the twin, and no error is set. */
static int
add(PyObject *value, uint32_t *hash, int depth)
{
    PyTypeObject *type = Py_TYPE(value);
    if (type == &PyUnicode_Type)
        return add_text(value, hash);
    if (type == &PyLong_Type || type == &PyBool_Type) {
        int overflow;
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (!overflow)
            *hash = hash_long((uint64_t)number, *hash);
        return !overflow;
    }
    if (type == &PyFloat_Type) {
        double number = PyFloat_AS_DOUBLE(value);
        uint64_t bits;
        if (isnan(number) || (fabs(number) >= 0x1p63 && !isinf(number)))
            return 0; /* every NaN hashes alike; a whole number of more digits */
        memcpy(&bits, &number, sizeof bits);
        *hash = hash_long(!isinf(number) && number == floor(number) ? (uint64_t)(long long)number : bits, *hash);
        return 1;
    }
    if (type == &PyBytes_Type) {
        *hash = hash_bytes(PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value), *hash);
        return 1;
    }
    if ((type == &PyTuple_Type || type == &PyList_Type) && depth < MOST_DEPTH) {
        for (Py_ssize_t at = 0; at < PySequence_Fast_GET_SIZE(value); at++)
            if (!add(PySequence_Fast_GET_ITEM(value, at), hash, depth + 1))
                return 0;
        return 1;
    }
    return value == Py_None;
}

/* Whether a value's hash was found; no error is set. Also called by _core.c. */
int
hash_of_value(PyObject *value, int32_t *hash)
{
    uint32_t found = SEED;
    if (!add(value, &found, 0))
        return 0;
    *hash = (int32_t)found;
    return 1;
}

/* The same of the tuple of those of the values at some positions, all of which there are. Also called by _core.c. */
int
hash_of_positions(PyObject *values, const Py_ssize_t *positions, Py_ssize_t count, int32_t *hash)
{
    uint32_t found = SEED;
    for (Py_ssize_t n = 0; n < count; n++)
        if (!add(PyTuple_GET_ITEM(values, positions[n]), &found, 1))
            return 0;
    *hash = (int32_t)found;
    return 1;
}

/* The two hashes of partial key grouping: of the list of those values, and of that list and "second" in a list. Also called by
   _core.c. */
int
hashes_of_positions(PyObject *values, const Py_ssize_t *positions, Py_ssize_t count, int32_t *first, int32_t *second)
{
    if (!hash_of_positions(values, positions, count, first))
        return 0;
    *second = (int32_t)hash_bytes("second", 6, (uint32_t)*first);
    return 1;
}

/* A hash modulo a positive count, as Python and Spark's pmod have it. Also called by _core.c. */
Py_ssize_t
place_of_hash(int32_t hash, Py_ssize_t count)
{
    Py_ssize_t place = hash % count;
    return place < 0 ? place + count : place;
}

/* The hash of any value; -1 with an error. */
static int
find_hash(PyObject *value, int32_t *hash)
{
    if (hash_of_value(value, hash))
        return 0;
    if (plain == NULL) {
        PyErr_SetString(PyExc_TypeError, "the hash has no twin; call set_hashing");
        return -1;
    }
    PyObject *found = PyObject_CallOneArg(plain, value);
    long number = found == NULL ? 0 : PyLong_AsLong(found);
    Py_XDECREF(found);
    *hash = (int32_t)number;
    return PyErr_Occurred() ? -1 : 0;
}

PyDoc_STRVAR(stable_hash_doc, "stable_hash(value): the signed 32-bit hash of a value; numbers that compare equal (1, 1.0, True) hash alike,\n"
                              "as in a dict.");

static PyObject *
stable_hash(PyObject *module, PyObject *value)
{
    int32_t hash;
    return find_hash(value, &hash) < 0 ? NULL : PyLong_FromLong(hash);
}

PyDoc_STRVAR(hash_of_bytes_doc, "hash_of_bytes(data, seed): the signed 32-bit hash of bytes; twin: _plain_hash_of_bytes of common/grouping/hashing.py.");

static PyObject *
hash_of_bytes(PyObject *module, PyObject *args)
{
    const char *data;
    Py_ssize_t size;
    int seed;
    if (!PyArg_ParseTuple(args, "y#i", &data, &size, &seed))
        return NULL;
    return PyLong_FromLong((int32_t)hash_bytes(data, size, (uint32_t)seed));
}

PyDoc_STRVAR(places_doc, "places(keys, count): bytes of an int32 for each key of a list, its hash modulo `count`.\n\n"
                         "Twin: place_of of common/grouping/routes.py.");

static PyObject *
places(PyObject *module, PyObject *args)
{
    PyObject *keys;
    unsigned int count;
    if (!PyArg_ParseTuple(args, "O!I", &PyList_Type, &keys, &count))
        return NULL;
    if (count < 1 || count > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "places takes a positive number of tasks");
        return NULL;
    }
    Py_ssize_t size = PyList_GET_SIZE(keys);
    PyObject *found = PyBytes_FromStringAndSize(NULL, size * (Py_ssize_t)sizeof(int32_t));
    for (Py_ssize_t at = 0; found != NULL && at < size; at++) {
        /* the twin runs code of values, which may change the list */
        PyObject *key = at < PyList_GET_SIZE(keys) ? Py_NewRef(PyList_GET_ITEM(keys, at)) : NULL;
        int32_t hash = 0;
        if (key == NULL)
            PyErr_SetString(PyExc_RuntimeError, "keys changed while their places were looked for");
        if (key == NULL || find_hash(key, &hash) < 0)
            Py_CLEAR(found);
        else {
            int32_t place = (int32_t)place_of_hash(hash, (Py_ssize_t)count);
            memcpy(PyBytes_AS_STRING(found) + at * (Py_ssize_t)sizeof place, &place, sizeof place);
        }
        Py_XDECREF(key);
    }
    return found;
}

PyDoc_STRVAR(set_hashing_doc, "set_hashing(plain): the twin of stable_hash, for values that are left to it.");

static PyObject *
set_hashing(PyObject *module, PyObject *twin)
{
    Py_XSETREF(plain, Py_NewRef(twin));
    Py_RETURN_NONE;
}

PyMethodDef hash_functions[] = {
    {"stable_hash", stable_hash, METH_O, stable_hash_doc},
    {"hash_of_bytes", hash_of_bytes, METH_VARARGS, hash_of_bytes_doc},
    {"places", places, METH_VARARGS, places_doc},
    {"set_hashing", set_hashing, METH_O, set_hashing_doc},
    {NULL, NULL, 0, NULL},
};

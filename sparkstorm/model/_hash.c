/* Hash of fields grouping; the twin is _stable_hash in grouping/hashing.py. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* Longer keys are left to the twin, whose CRC32 (zlib's) takes several bytes at once: a text of 64 bytes takes 193 ns here and 430
   there, one of 128 bytes 359 and 454, one of 256 bytes 758 and 619. */
enum { MOST_BYTES = 128 };
#define GOLDEN 0x9E3779B97F4A7C15u /* _GOLDEN of hashing.py */

static uint32_t crc_by_byte[256]; /* CRC-32 of ISO 3309, as zlib has it */
static PyObject *plain;           /* the twin, for values that are left to it */

/* What comes of a value behind its kind, one letter. */
typedef struct {
    char kind;
    const char *data;
    Py_ssize_t size;
    char buffer[24];
} Spelt;

/* Called by PyInit__core. */
void
hash_fill_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
        crc_by_byte[byte] = crc;
    }
}

static inline uint32_t
add_bytes(uint32_t crc, const char *data, Py_ssize_t size)
{
    for (Py_ssize_t at = 0; at < size; at++)
        crc = crc_by_byte[(crc ^ (unsigned char)data[at]) & 0xFF] ^ crc >> 8;
    return crc;
}

static void
spell_number(long long number, Spelt *spelt)
{
    char *end = spelt->buffer + sizeof spelt->buffer, *at = end;
    unsigned long long rest = number < 0 ? 0ULL - (unsigned long long)number : (unsigned long long)number;
    do
        *--at = (char)('0' + rest % 10);
    while (rest /= 10);
    if (number < 0)
        *--at = '-';
    spelt->kind = 'i';
    spelt->data = at;
    spelt->size = end - at;
}

static void
spell_fraction(double number, Spelt *spelt)
{
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    for (int byte = 0; byte < 8; byte++)
        spelt->buffer[byte] = (char)(bits >> (56 - 8 * byte));
    spelt->kind = 'f';
    spelt->data = spelt->buffer;
    spelt->size = 8;
}

/* Whether a value has a short spelling here; no error is set. */
static int
spell(PyObject *value, Spelt *spelt)
{
    PyTypeObject *type = Py_TYPE(value);
    if (type == &PyUnicode_Type) {
        spelt->kind = 's';
        if (PyUnicode_IS_COMPACT_ASCII(value)) {
            spelt->data = (const char *)PyUnicode_1BYTE_DATA(value);
            spelt->size = PyUnicode_GET_LENGTH(value);
        } else if (PyUnicode_GET_LENGTH(value) > MOST_BYTES || (spelt->data = PyUnicode_AsUTF8AndSize(value, &spelt->size)) == NULL) {
            PyErr_Clear(); /* a half of a pair of surrogates */
            return 0;
        }
        return spelt->size <= MOST_BYTES;
    }
    if (type == &PyLong_Type || type == &PyBool_Type) {
        int overflow;
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (!overflow)
            spell_number(number, spelt);
        return !overflow;
    }
    if (type == &PyFloat_Type) {
        double number = PyFloat_AS_DOUBLE(value);
        if (isnan(number) || (fabs(number) >= 0x1p63 && !isinf(number)))
            return 0; /* every NaN hashes alike; a whole number of more digits */
        if (!isinf(number) && number == floor(number))
            spell_number((long long)number, spelt);
        else
            spell_fraction(number, spelt);
        return 1;
    }
    if (type == &PyBytes_Type) {
        spelt->kind = 'b';
        spelt->data = PyBytes_AS_STRING(value);
        spelt->size = PyBytes_GET_SIZE(value);
        return spelt->size <= MOST_BYTES;
    }
    spelt->kind = 'n';
    spelt->data = spelt->buffer;
    spelt->size = 0;
    return value == Py_None;
}

static inline uint32_t
spread(uint32_t crc)
{
    return (uint32_t)((~crc * (uint64_t)GOLDEN) >> 32);
}

/* Take an element of a list into its CRC32: length, colon, spelling. */
static int
add_element(PyObject *value, uint32_t *crc)
{
    Spelt spelt, length;
    if (!spell(value, &spelt))
        return 0;
    spell_number(spelt.size + 1, &length);
    *crc = add_bytes(*crc, length.data, length.size);
    *crc = add_bytes(*crc, ":", 1);
    *crc = add_bytes(*crc, &spelt.kind, 1);
    *crc = add_bytes(*crc, spelt.data, spelt.size);
    return 1;
}

/* Whether a value's hash was found; no error is set. Also called by _core.c. */
int
hash_of_value(PyObject *value, uint32_t *hash)
{
    uint32_t crc = ~(uint32_t)0;
    if (PyTuple_CheckExact(value) || PyList_CheckExact(value)) {
        Py_ssize_t size = PySequence_Fast_GET_SIZE(value);
        crc = add_bytes(crc, "l", 1);
        for (Py_ssize_t at = 0; at < size; at++)
            if (!add_element(PySequence_Fast_GET_ITEM(value, at), &crc))
                return 0;
    } else {
        Spelt spelt;
        if (!spell(value, &spelt))
            return 0;
        crc = add_bytes(add_bytes(crc, &spelt.kind, 1), spelt.data, spelt.size);
    }
    *hash = spread(crc);
    return 1;
}

/* The same of the tuple of those of the values at some positions, all of which there are. Also called by _core.c. */
int
hash_of_positions(PyObject *values, const Py_ssize_t *positions, Py_ssize_t count, uint32_t *hash)
{
    uint32_t crc = add_bytes(~(uint32_t)0, "l", 1);
    for (Py_ssize_t n = 0; n < count; n++)
        if (!add_element(PyTuple_GET_ITEM(values, positions[n]), &crc))
            return 0;
    *hash = spread(crc);
    return 1;
}

/* The two hashes of partial key grouping: of the list of those values, and of that list and "second" in a list. Also called by
   _core.c. */
int
hashes_of_positions(PyObject *values, const Py_ssize_t *positions, Py_ssize_t count, uint32_t *first, uint32_t *second)
{
    Spelt spelt, length;
    Py_ssize_t size = 1; /* of the inner list */
    for (Py_ssize_t n = 0; n < count; n++) {
        if (!spell(PyTuple_GET_ITEM(values, positions[n]), &spelt))
            return 0;
        spell_number(spelt.size + 1, &length);
        size += length.size + 1 + 1 + spelt.size;
    }
    spell_number(size, &length);
    uint32_t inner = add_bytes(~(uint32_t)0, "l", 1), outer = add_bytes(inner, length.data, length.size);
    outer = add_bytes(outer, ":l", 2);
    for (Py_ssize_t n = 0; n < count; n++)
        if (!add_element(PyTuple_GET_ITEM(values, positions[n]), &inner) || !add_element(PyTuple_GET_ITEM(values, positions[n]), &outer))
            return 0;
    *first = spread(inner);
    *second = spread(add_bytes(outer, "7:ssecond", 9));
    return 1;
}

/* The hash of any value; -1 with an error. */
static int
find_hash(PyObject *value, uint32_t *hash)
{
    if (hash_of_value(value, hash))
        return 0;
    if (plain == NULL) {
        PyErr_SetString(PyExc_TypeError, "the hash has no twin; call set_hashing");
        return -1;
    }
    PyObject *found = PyObject_CallOneArg(plain, value);
    unsigned long number = found == NULL ? 0 : PyLong_AsUnsignedLongMask(found);
    Py_XDECREF(found);
    *hash = (uint32_t)number;
    return PyErr_Occurred() ? -1 : 0;
}

PyDoc_STRVAR(stable_hash_doc, "stable_hash(value): a 32-bit hash of a value; numbers that compare equal (1, 1.0, True) hash alike, as in a dict.");

static PyObject *
stable_hash(PyObject *module, PyObject *value)
{
    uint32_t hash;
    return find_hash(value, &hash) < 0 ? NULL : PyLong_FromUnsignedLong(hash);
}

PyDoc_STRVAR(places_doc, "places(keys, count): bytes of an int32 for each key of a list, its hash modulo `count`.\n\n"
                         "Twin: place_of of grouping/routes.py.");

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
        uint32_t hash = 0;
        if (key == NULL)
            PyErr_SetString(PyExc_RuntimeError, "keys changed while their places were looked for");
        if (key == NULL || find_hash(key, &hash) < 0)
            Py_CLEAR(found);
        else {
            int32_t place = (int32_t)(hash % count);
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
    {"places", places, METH_VARARGS, places_doc},
    {"set_hashing", set_hashing, METH_O, set_hashing_doc},
    {NULL, NULL, 0, NULL},
};

/* Bytes of values and back, as ormsgpack writes and reads them; Codec.pack and Codec.unpack in common/model/values/codec.py are the twins.

   msgpack's own containers and scalars, and the extensions of _extensions.c. Everything else, and everything that is wrong, is the
   twin's: other extensions, wide numbers, text that is no UTF-8, damaged or odd bytes. So the rules and errors exist once. No code of
   users runs in here. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MOST_LEVELS 72 /* above _MAX_DEPTH of codec.py, with the levels of a frame; deeper values are the twin's */

extern Py_ssize_t put_extension(unsigned char *to, PyObject *value); /* _extensions.c */
extern PyObject *extension_of(int code, const unsigned char *data, Py_ssize_t size);
enum { MOST_EXTENSION = 260 }; /* bytes of an extension, with its head */

/* ---- pack ---- */

typedef struct {
    PyObject *bytes;
    unsigned char *at, *end;
} Packed;

/* 1: done; 0: for the twin; -1: error. */
static int
make_room(Packed *to, Py_ssize_t more)
{
    if (to->end - to->at >= more)
        return 1;
    Py_ssize_t used = to->at - (unsigned char *)PyBytes_AS_STRING(to->bytes), size = PyBytes_GET_SIZE(to->bytes);
    if (more > PY_SSIZE_T_MAX / 4 - size)
        return 0;
    size = 2 * size + more;
    if (_PyBytes_Resize(&to->bytes, size) < 0)
        return -1;
    to->at = (unsigned char *)PyBytes_AS_STRING(to->bytes) + used;
    to->end = (unsigned char *)PyBytes_AS_STRING(to->bytes) + size;
    return 1;
}

static inline void
put_big_endian(Packed *to, uint64_t number, int size)
{
    for (int shift = 8 * (size - 1); shift >= 0; shift -= 8)
        *to->at++ = (unsigned char)(number >> shift);
}

static inline void
put_marked(Packed *to, unsigned char mark, uint64_t number, int size)
{
    *to->at++ = mark;
    put_big_endian(to, number, size);
}

/* In the fewest bytes that have it. */
static int
pack_number(Packed *to, PyObject *value)
{
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow)
        return 0;
    if (number >= 0) {
        if (number < 0x80)
            *to->at++ = (unsigned char)number;
        else if (number <= UINT8_MAX)
            put_marked(to, 0xCC, (uint64_t)number, 1);
        else if (number <= UINT16_MAX)
            put_marked(to, 0xCD, (uint64_t)number, 2);
        else if (number <= UINT32_MAX)
            put_marked(to, 0xCE, (uint64_t)number, 4);
        else
            put_marked(to, 0xCF, (uint64_t)number, 8);
    } else if (number >= -32)
        *to->at++ = (unsigned char)number;
    else if (number >= INT8_MIN)
        put_marked(to, 0xD0, (uint64_t)number, 1);
    else if (number >= INT16_MIN)
        put_marked(to, 0xD1, (uint64_t)number, 2);
    else if (number >= INT32_MIN)
        put_marked(to, 0xD2, (uint64_t)number, 4);
    else
        put_marked(to, 0xD3, (uint64_t)number, 8);
    return 1;
}

/* The head of what has a length: in the first byte up to `most`, else in 1 (mark8, if not 0), 2 or 4 bytes behind a mark. */
static int
put_length(Packed *to, Py_ssize_t length, Py_ssize_t most, unsigned char first, unsigned char mark8, unsigned char mark16)
{
    if (length <= most)
        *to->at++ = (unsigned char)(first + length);
    else if (mark8 != 0 && length <= UINT8_MAX)
        put_marked(to, mark8, (uint64_t)length, 1);
    else if (length <= UINT16_MAX)
        put_marked(to, mark16, (uint64_t)length, 2);
    else if (length <= UINT32_MAX)
        put_marked(to, mark16 + 1, (uint64_t)length, 4);
    else
        return 0;
    return 1;
}

static inline int
put_bytes(Packed *to, const char *data, Py_ssize_t size)
{
    int done = make_room(to, size);
    if (done == 1) {
        memcpy(to->at, data, (size_t)size);
        to->at += size;
    }
    return done;
}

static int
pack_text(Packed *to, PyObject *value)
{
    Py_ssize_t size;
    const char *data;
    if (PyUnicode_IS_COMPACT_ASCII(value)) {
        data = (const char *)PyUnicode_1BYTE_DATA(value);
        size = PyUnicode_GET_LENGTH(value);
    } else if ((data = PyUnicode_AsUTF8AndSize(value, &size)) == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeError))
            return -1;
        PyErr_Clear(); /* surrogates */
        return 0;
    }
    return put_length(to, size, 31, 0xA0, 0xD9, 0xDA) ? put_bytes(to, data, size) : 0;
}

static int
pack_scalar(Packed *to, PyObject *value)
{
    if (PyUnicode_CheckExact(value))
        return pack_text(to, value);
    if (PyLong_CheckExact(value))
        return pack_number(to, value);
    if (PyFloat_CheckExact(value)) {
        double number = PyFloat_AS_DOUBLE(value);
        uint64_t bits;
        memcpy(&bits, &number, 8);
        put_marked(to, 0xCB, bits, 8);
        return 1;
    }
    if (value == Py_None || value == Py_False || value == Py_True) {
        *to->at++ = value == Py_None ? 0xC0 : value == Py_False ? 0xC2 : 0xC3;
        return 1;
    }
    if (PyBytes_CheckExact(value)) {
        Py_ssize_t size = PyBytes_GET_SIZE(value);
        return put_length(to, size, -1, 0, 0xC4, 0xC5) ? put_bytes(to, PyBytes_AS_STRING(value), size) : 0;
    }
    return 0;
}

static int
pack_extension(Packed *to, PyObject *value)
{
    int done = make_room(to, MOST_EXTENSION);
    Py_ssize_t size = done == 1 ? put_extension(to->at, value) : 0;
    to->at += size;
    return done < 1 ? done : size > 0 ? 1 : PyErr_Occurred() ? -1 : 0;
}

static int
pack_value(Packed *to, PyObject *value, int level)
{
    int done = make_room(to, 16); /* for a number, or the head of anything */
    if (done < 1)
        return done;
    if (PyDict_CheckExact(value)) {
        PyObject *key, *content;
        Py_ssize_t at = 0;
        if (level == MOST_LEVELS || !put_length(to, PyDict_GET_SIZE(value), 15, 0x80, 0, 0xDE))
            return 0;
        while (done == 1 && PyDict_Next(value, &at, &key, &content))
            if ((done = make_room(to, 16)) == 1 && (done = pack_scalar(to, key)) == 1)
                done = pack_value(to, content, level + 1);
        return done;
    }
    if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
        Py_ssize_t size = PySequence_Fast_GET_SIZE(value);
        PyObject **items = PySequence_Fast_ITEMS(value);
        if (level == MOST_LEVELS || !put_length(to, size, 15, 0x90, 0, 0xDC))
            return 0;
        for (Py_ssize_t at = 0; done == 1 && at < size; at++)
            done = pack_value(to, items[at], level + 1);
        return done;
    }
    done = pack_scalar(to, value);
    return done == 0 ? pack_extension(to, value) : done;
}

PyDoc_STRVAR(pack_doc, "pack(value): its bytes; None for a value with anything in it that is the twin's.");

static PyObject *
pack(PyObject *module, PyObject *value)
{
    Packed to = {PyBytes_FromStringAndSize(NULL, 256), NULL, NULL};
    if (to.bytes == NULL)
        return NULL;
    to.at = (unsigned char *)PyBytes_AS_STRING(to.bytes);
    to.end = to.at + 256;
    int done = pack_value(&to, value, 0);
    if (done == 1) {
        (void)_PyBytes_Resize(&to.bytes, to.at - (unsigned char *)PyBytes_AS_STRING(to.bytes)); /* NULL when there is no memory */
        return to.bytes;
    }
    Py_XDECREF(to.bytes);
    if (done < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* ---- rows as packed columns ---- */

enum { LEVEL_OF_VALUES = 3 }; /* in a frame: its body, the columns, a column */

/* Pack one row's values, each behind its column. 1: done; 0: for the twin, or more than `left` bytes; -1: error. */
static int
pack_row(Packed *columns, Py_ssize_t width, PyObject *row, Py_ssize_t left)
{
    PyObject *values = PyTuple_CheckExact(row) && PyTuple_GET_SIZE(row) == 3 ? PyTuple_GET_ITEM(row, 0) : NULL;
    if (values == NULL || !PyTuple_CheckExact(values) || PyTuple_GET_SIZE(values) != width)
        return 0;
    for (Py_ssize_t field = 0; field < width; field++) {
        Packed *to = &columns[field];
        Py_ssize_t before = to->at - (unsigned char *)PyBytes_AS_STRING(to->bytes);
        int done = pack_value(to, PyTuple_GET_ITEM(values, field), LEVEL_OF_VALUES);
        if (done < 1)
            return done;
        left -= to->at - (unsigned char *)PyBytes_AS_STRING(to->bytes) - before;
        if (left < 0)
            return 0;
    }
    return 1;
}

/* A tuple of the columns' bytes; the columns keep none of them. */
static PyObject *
taken_columns(Packed *columns, Py_ssize_t width)
{
    PyObject *found = PyTuple_New(width);
    for (Py_ssize_t field = 0; found != NULL && field < width; field++) {
        Packed *from = &columns[field];
        if (_PyBytes_Resize(&from->bytes, from->at - (unsigned char *)PyBytes_AS_STRING(from->bytes)) < 0)
            Py_CLEAR(found);
        else {
            PyTuple_SET_ITEM(found, field, from->bytes);
            from->bytes = NULL;
        }
    }
    return found;
}

/* Pack rows from the first one on, and put their roots and sources into the lists; how many, -1 with an error. */
static Py_ssize_t
pack_first_rows(Packed *columns, Py_ssize_t width, PyObject *const *args, Py_ssize_t most, Py_ssize_t most_bytes)
{
    Py_ssize_t count = 0, field, size = 0;
    Py_ssize_t *ends = PyMem_Calloc(width + 1, sizeof *ends); /* of the rows that are done */
    if (ends == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (; count < most && count < PyList_GET_SIZE(args[0]); count++) {
        PyObject *row = PyList_GET_ITEM(args[0], count);
        int done = pack_row(columns, width, row, most_bytes - size);
        if (done == 1 && (PyList_Append(args[1], PyTuple_GET_ITEM(row, 1)) < 0 || PyList_Append(args[2], PyTuple_GET_ITEM(row, 2)) < 0))
            done = -1;
        if (done < 0)
            count = -1;
        if (done < 1)
            break;
        for (size = 0, field = 0; field < width; field++)
            size += ends[field] = columns[field].at - (unsigned char *)PyBytes_AS_STRING(columns[field].bytes);
    }
    for (field = 0; field < width && count >= 0; field++) /* without what is there of a row that was left */
        columns[field].at = (unsigned char *)PyBytes_AS_STRING(columns[field].bytes) + ends[field];
    PyMem_Free(ends);
    return count;
}

PyDoc_STRVAR(pack_rows_doc,
             "pack_rows(rows, roots, sources, most, most_bytes): pack the values of the first rows, so many and so many bytes at the most: the\n"
             "bytes of each column. Roots and sources get theirs. None where the first row is larger or has anything of the twin's, which is\n"
             "encode_rows of data_plane/transport/frames.py.");

static PyObject *
pack_rows(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    Py_ssize_t most = given == 5 ? PyLong_AsSsize_t(args[3]) : -1, most_bytes = most < 0 ? -1 : PyLong_AsSsize_t(args[4]);
    if (most_bytes < 0 || !PyList_CheckExact(args[0]) || !PyList_CheckExact(args[1]) || !PyList_CheckExact(args[2])) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "pack_rows takes three lists and two numbers from 0 on");
        return NULL;
    }
    PyObject *row = PyList_GET_SIZE(args[0]) > 0 ? PyList_GET_ITEM(args[0], 0) : NULL, *found = NULL;
    if (row == NULL || !PyTuple_CheckExact(row) || PyTuple_GET_SIZE(row) != 3 || !PyTuple_CheckExact(PyTuple_GET_ITEM(row, 0)))
        Py_RETURN_NONE;
    Py_ssize_t width = PyTuple_GET_SIZE(PyTuple_GET_ITEM(row, 0)), made = 0, count = 0;
    Packed *columns = PyMem_Calloc(width + 1, sizeof *columns);
    if (columns == NULL)
        return PyErr_NoMemory();
    for (; made < width && (columns[made].bytes = PyBytes_FromStringAndSize(NULL, 1024)) != NULL; made++) {
        columns[made].at = (unsigned char *)PyBytes_AS_STRING(columns[made].bytes);
        columns[made].end = columns[made].at + 1024;
    }
    if (made == width && (count = pack_first_rows(columns, width, args, most, most_bytes)) > 0)
        found = taken_columns(columns, width);
    for (Py_ssize_t field = 0; field < width; field++)
        Py_XDECREF(columns[field].bytes);
    PyMem_Free(columns);
    if (found == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return found;
}

/* ---- unpack ---- */

/* Texts that were read lately, by a hash of their bytes: keys of mappings, and what is repeated in columns, such as words, are made
   and hashed once. Half as many hold fewer of the frequent words of a natural text, double no longer fit into the first cache. */
enum { KNOWN_TEXTS = 2048, LONGEST_KNOWN = 24 };
static PyObject *known_texts[KNOWN_TEXTS];

typedef struct {
    const unsigned char *at, *end;
} Source;

static size_t
place_of_text(const unsigned char *data, Py_ssize_t size)
{
    uint64_t first = 0, last = 0;
    if (size >= 8) {
        memcpy(&first, data, 8);
        memcpy(&last, data + size - 8, 8);
    } else if (size >= 4) {
        uint32_t part;
        memcpy(&part, data, 4);
        first = part;
        memcpy(&part, data + size - 4, 4);
        last = part;
    } else
        first = data[0] | (uint64_t)data[size / 2] << 8 | (uint64_t)data[size - 1] << 16;
    first = (first ^ (uint64_t)size) * 0x9E3779B97F4A7C15ULL;
    first = (first ^ first >> 29 ^ last) * 0xBF58476D1CE4E5B9ULL;
    return (size_t)(first >> 53); /* 11 bits: KNOWN_TEXTS */
}

/* The text of these bytes; NULL without an error for the twin. */
static PyObject *
text_of(const unsigned char *data, Py_ssize_t size)
{
    PyObject **known = NULL, *found;
    if (size > 0 && size <= LONGEST_KNOWN) {
        known = &known_texts[place_of_text(data, size)];
        found = *known;
        if (found != NULL && PyUnicode_GET_LENGTH(found) == size && memcmp(PyUnicode_1BYTE_DATA(found), data, (size_t)size) == 0)
            return Py_NewRef(found);
    }
    found = PyUnicode_DecodeUTF8((const char *)data, size, NULL);
    if (found == NULL && PyErr_ExceptionMatches(PyExc_UnicodeError))
        PyErr_Clear();
    if (found != NULL && known != NULL && PyUnicode_IS_COMPACT_ASCII(found))
        Py_XSETREF(*known, Py_NewRef(found));
    return found;
}

static inline uint64_t
take_big_endian(Source *from, int size)
{
    uint64_t number = 0;
    while (size-- > 0)
        number = number << 8 | *from->at++;
    return number;
}

static PyObject *
float_of(Source *from, int size)
{
    uint64_t bits = take_big_endian(from, size);
    uint32_t few = (uint32_t)bits;
    double number;
    float small;
    if (size == 4) {
        memcpy(&small, &few, 4);
        return PyFloat_FromDouble(small);
    }
    memcpy(&number, &bits, 8);
    return PyFloat_FromDouble(number);
}

static PyObject *unpack_value(Source *from, int level, int is_key);

static PyObject *
unpack_list(Source *from, Py_ssize_t size, int level)
{
    if (size > from->end - from->at) /* each item takes a byte at least */
        return NULL;
    PyObject *found = PyList_New(size);
    for (Py_ssize_t at = 0; found != NULL && at < size; at++) {
        PyObject *item = unpack_value(from, level + 1, 0);
        if (item == NULL)
            Py_CLEAR(found);
        else
            PyList_SET_ITEM(found, at, item);
    }
    return found;
}

/* A new dict for so many pairs. */
static PyObject *
new_dict(Py_ssize_t size)
{
#if PY_VERSION_HEX < 0x030D0000 /* it has left the public headers */
    return _PyDict_NewPresized(size);
#else
    return PyDict_New();
#endif
}

static PyObject *
unpack_mapping(Source *from, Py_ssize_t size, int level)
{
    if (size > (from->end - from->at) / 2)
        return NULL;
    PyObject *found = new_dict(size);
    for (Py_ssize_t at = 0; found != NULL && at < size; at++) {
        PyObject *key = unpack_value(from, level + 1, 1);
        PyObject *content = key == NULL ? NULL : unpack_value(from, level + 1, 0);
        if (content == NULL || PyDict_SetItem(found, key, content) < 0)
            Py_CLEAR(found);
        Py_XDECREF(key);
        Py_XDECREF(content);
    }
    return found;
}

/* A length behind a mark, or -1. */
static inline Py_ssize_t
take_length(Source *from, int size)
{
    return from->end - from->at < size ? -1 : (Py_ssize_t)take_big_endian(from, size);
}

static PyObject *
unpack_sized(Source *from, unsigned char mark, int level, int is_key)
{
    Py_ssize_t length;
    switch (mark) {
    case 0xC4:
    case 0xC5:
    case 0xC6:
        length = take_length(from, 1 << (mark - 0xC4));
        if (length < 0 || length > from->end - from->at)
            return NULL;
        from->at += length;
        return PyBytes_FromStringAndSize((const char *)from->at - length, length);
    case 0xD9:
    case 0xDA:
    case 0xDB:
        length = take_length(from, 1 << (mark - 0xD9));
        if (length < 0 || length > from->end - from->at)
            return NULL;
        from->at += length;
        return text_of(from->at - length, length);
    case 0xDC:
    case 0xDD:
        length = is_key || level == MOST_LEVELS ? -1 : take_length(from, 2 << (mark - 0xDC));
        return length < 0 ? NULL : unpack_list(from, length, level);
    case 0xDE:
    case 0xDF:
        length = is_key || level == MOST_LEVELS ? -1 : take_length(from, 2 << (mark - 0xDE));
        return length < 0 ? NULL : unpack_mapping(from, length, level);
    case 0xC7:
        length = take_length(from, 1);
        break;
    case 0xD4:
    case 0xD5:
    case 0xD6:
    case 0xD7:
    case 0xD8:
        length = 1 << (mark - 0xD4);
        break;
    default: /* longer extensions, and what msgpack has left out */
        return NULL;
    }
    if (is_key || length < 0 || length >= from->end - from->at) /* its code is a byte too */
        return NULL;
    from->at += 1 + length;
    return extension_of(from->at[-1 - length], from->at - length, length);
}

/* The next value; NULL without an error for the twin. */
static PyObject *
unpack_value(Source *from, int level, int is_key)
{
    Py_ssize_t left = from->end - from->at - 1;
    if (left < 0)
        return NULL;
    unsigned char mark = *from->at++;
    int size;
    if (mark < 0x80)
        return PyLong_FromLong(mark);
    if (mark >= 0xE0)
        return PyLong_FromLong((signed char)mark);
    if (mark < 0xA0) {
        if (is_key || level == MOST_LEVELS)
            return NULL;
        return mark < 0x90 ? unpack_mapping(from, mark & 15, level) : unpack_list(from, mark & 15, level);
    }
    if (mark < 0xC0) {
        if ((size = mark & 31) > left)
            return NULL;
        from->at += size;
        return text_of(from->at - size, size);
    }
    switch (mark) {
    case 0xC0:
        Py_RETURN_NONE;
    case 0xC2:
        Py_RETURN_FALSE;
    case 0xC3:
        Py_RETURN_TRUE;
    case 0xCA:
    case 0xCB:
        size = mark == 0xCA ? 4 : 8;
        return left < size ? NULL : float_of(from, size);
    case 0xCC:
    case 0xCD:
    case 0xCE:
    case 0xCF:
        size = 1 << (mark - 0xCC);
        return left < size ? NULL : PyLong_FromUnsignedLongLong(take_big_endian(from, size));
    case 0xD0:
    case 0xD1:
    case 0xD2:
    case 0xD3:
        size = 1 << (mark - 0xD0);
        if (left < size)
            return NULL;
        switch (size) {
        case 1:
            return PyLong_FromLong((int8_t)take_big_endian(from, 1));
        case 2:
            return PyLong_FromLong((int16_t)take_big_endian(from, 2));
        case 4:
            return PyLong_FromLong((int32_t)take_big_endian(from, 4));
        default:
            return PyLong_FromLongLong((int64_t)take_big_endian(from, 8));
        }
    default:
        return unpack_sized(from, mark, level, is_key);
    }
}

PyDoc_STRVAR(unpack_doc, "unpack(data): the value of these bytes; NotImplemented for bytes that are the twin's.");

static PyObject *
unpack(PyObject *module, PyObject *data)
{
    Py_buffer buffer;
    if (PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE) < 0) {
        PyErr_Clear();
        Py_RETURN_NOTIMPLEMENTED;
    }
    Source from = {buffer.buf, (const unsigned char *)buffer.buf + buffer.len};
    PyObject *found = unpack_value(&from, 0, 0);
    PyBuffer_Release(&buffer);
    if (found == NULL && !PyErr_Occurred())
        Py_RETURN_NOTIMPLEMENTED;
    return found;
}

PyMethodDef msgpack_functions[] = {
    {"pack", pack, METH_O, pack_doc},
    {"pack_rows", (PyCFunction)(void (*)(void))pack_rows, METH_FASTCALL, pack_rows_doc},
    {"unpack", unpack, METH_O, unpack_doc},
    {NULL, NULL, 0, NULL},
};
